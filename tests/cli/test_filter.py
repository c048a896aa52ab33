"""Data can never control the terminal, however it is printed."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli import output
from stoker.cli.errors import run_command
from stoker.cli.output import colour
from stoker.client import fast_json
from stoker.client.errors import UsageError
from stoker.terminal import FilteredStream, filtered, write_raw

NASTY = "a\x1b]0;own\x07\x1b[7mb\x9bmc\u202ed\u2066e\u200ef\x7f\x08\r\udc80"


def is_harmless(text: str) -> bool:
    return text.replace("\n", "").replace("\t", "").isprintable()


@given(st.text())
def test_nothing_but_colours_passes_the_filter(text: str) -> None:
    assert is_harmless(filtered(text, coloured=False))
    painted = filtered(f"{colour.coded('x', 'red', 'bold')}{text}", coloured=True)
    assert painted.startswith("\x1b[31;1mx\x1b[0m")
    rest = painted.removeprefix("\x1b[31;1mx\x1b[0m")
    for code in ("0", "1", "2", *map(str, range(31, 37))):
        rest = rest.replace(f"\x1b[{code}m", "")
    assert is_harmless(rest)


@given(st.recursive(st.text() | st.none(), lambda each: st.dictionaries(st.text(), each)))
def test_json_escapes_unprintable_characters_and_keeps_the_value(value: object) -> None:
    for text in (fast_json.dumps(value), fast_json.pretty(value)):
        assert json.loads(text) == value
        assert is_harmless(text)


def test_a_command_prints_through_the_filter(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> int:
        print(NASTY)
        output.say(NASTY)
        raise UsageError(f"There is no queue '{NASTY}'.")

    assert run_command(run, "stoker") == 2
    out, err = capsys.readouterr()
    assert is_harmless(out + err)
    assert out.startswith("a?]0;own??[7mb?mc?d?e?f")


def test_a_command_inside_another_can_still_move_the_cursor() -> None:
    stream = io.StringIO()
    twice = FilteredStream(FilteredStream(stream))  # type: ignore[arg-type]
    twice.write("\x1b[2J")
    write_raw(twice, "\x1b[K")  # type: ignore[arg-type]
    assert stream.getvalue() == "?[2J\x1b[K"
