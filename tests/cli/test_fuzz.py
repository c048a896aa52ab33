"""Any command line gives a result or a one-line error, never a traceback."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.options import parse
from stoker.cli.options.job import JOB, SUBMIT, job_options
from stoker.cli.output import times
from stoker.cli.session import format_labels
from stoker.client.errors import UsageError

NAMES = [name for option in (*JOB, *SUBMIT) for name in option.names]
WORDS = (
    st.sampled_from(NAMES) | st.text(max_size=8) | st.sampled_from(NAMES).map(lambda n: n + "=1")
)


@given(st.lists(WORDS, max_size=8), st.booleans())
def test_any_command_line(argv: list[str], command: bool) -> None:
    with contextlib.suppress(UsageError):
        job_options(parse((*JOB, *SUBMIT), argv, command=command))


@given(st.text(max_size=20) | st.from_regex(r"[0-9dhms.:T-]{1,20}", fullmatch=True))
def test_any_time(text: str) -> None:
    for read in (times.parse_duration, times.parse_time):
        with contextlib.suppress(UsageError):
            assert times.iso(read(text)).endswith("Z")


@given(st.lists(st.integers(min_value=0, max_value=300), unique=True).map(sorted))
def test_format_labels_keeps_all_labels(numbers: list[int]) -> None:
    text = format_labels([str(number) for number in numbers])
    if " more" in text or not numbers:
        return
    found: list[int] = []
    for part in text.split(", "):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    assert found == numbers
