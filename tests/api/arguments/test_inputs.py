"""Conversion of arguments, and errors for invalid ones."""

import pickle
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker.api.arguments import inputs, options

JOBS = [stoker.Job(id=9 + n, label=f"9_{n}", name="x", state="PENDING") for n in range(4)]


def test_any_heap_of_jobs_is_taken_apart() -> None:
    job = JOBS[2]
    assert inputs.selectors([job, 3, "last", [4, range(5, 7)]]) == [
        "9_2", "3", "last", "4", "5", "6",
    ]  # fmt: skip
    heaps: list[Any] = [
        (each for each in [3, 5]), {3: "x", 5: "y"}, {3: 0, 5: 0}.keys(), map(int, "35"), (3, [5]),
    ]  # fmt: skip
    for heap in heaps:
        assert inputs.selectors([heap]) == ["3", "5"]


def test_neighbours_are_a_range_and_keep_their_order_where_that_matters() -> None:
    first, second, third, _ = JOBS
    assert inputs.selectors([JOBS]) == ["9-12"]
    assert inputs.selectors([third, first, second]) == ["9_2", "9-10"]
    assert inputs.selectors([[third, first, second], "last"], ordered=False) == ["last", "9-11"]
    assert inputs.selectors([first, "x", second]) == ["9_0", "x", "9_1"]


@pytest.mark.parametrize("what", [None, 1.5, True, b"5", [None], object()])
def test_values_that_are_not_jobs_are_rejected(what: object) -> None:
    with pytest.raises(stoker.UsageError, match=r"is not a job\. Give an id"):
        inputs.selectors([what])


def test_one_job_is_not_several() -> None:
    assert inputs.selector([JOBS[1]]) == "9_1"
    with pytest.raises(stoker.UsageError, match="Expected one job, got 2"):
        inputs.selector([3, 4])


def test_a_command_is_converted_to_words() -> None:
    assert inputs.command_words(["echo", 5, 0.1, Path("/tmp")]) == ["echo", "5", "0.1", "/tmp"]
    assert inputs.command_body(Path("/bin/true")) == {"argv": ["/bin/true"]}
    assert inputs.command_body("echo $HOME") == {"line": "echo $HOME"}


def test_a_signal_by_name_number_and_enum() -> None:
    printed = [inputs.signal_name(each) for each in ("TERM", 15, signal.SIGTERM, None)]
    assert printed == ["TERM", "15", "SIGTERM", None]


NOWHERE = stoker.Client("/nowhere.sock", start=False)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: NOWHERE.submit([]), "The command is empty"),
        (lambda: NOWHERE.submit(None), "list of words"),  # type: ignore[call-overload]
        (lambda: NOWHERE.submit(5), "5 is neither"),  # type: ignore[call-overload]
        (lambda: NOWHERE.submit(b"true"), "b'true' is neither"),  # type: ignore[call-overload]
        (lambda: NOWHERE.submit(["echo", None]), "None is none of these"),  # type: ignore[list-item]
        (lambda: NOWHERE.submit("true", env=5), "env must be a text or a list of texts, not 5"),  # type: ignore[call-overload]
        (lambda: NOWHERE.submit("true", env={"A": None}), "env: A has no value"),  # type: ignore[dict-item]
        (lambda: NOWHERE.run("true", timeout="x"), "timeout must be a number of seconds, not 'x'"),  # type: ignore[arg-type]
        (lambda: NOWHERE.wait(5, timeout=float("nan")), "timeout must be a number of seconds"),
        (lambda: NOWHERE.kill(5, signal=1.5), "1.5 is not a signal"),  # type: ignore[arg-type]
        (lambda: NOWHERE.drain(None), "None is not a device"),  # type: ignore[arg-type]
        (lambda: NOWHERE.move(5, where="foo"), "where must be first, last, before or after, not"),
        (lambda: NOWHERE.move(5, where="before"), "need another job"),
        (lambda: NOWHERE.logs(5, stream="foo"), "stream must be out or err, not 'foo'"),
        (lambda: next(NOWHERE.follow(5, stream="foo")), "stream must be out or err"),
        (lambda: stoker.Executor(client=NOWHERE).submit(None), "not None"),  # type: ignore[arg-type]
        (lambda: stoker.Executor(client=NOWHERE).map(5, [1]), "not 5"),  # type: ignore[arg-type]
        (
            lambda: stoker.Executor("/proc/x", client=NOWHERE).submit(abs, 1),
            "/proc/x",
        ),
    ],
)
def test_invalid_values_are_rejected(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(stoker.UsageError, match=sentence):
        call()


def test_errors_have_the_names_that_scripts_catch() -> None:
    with pytest.raises(stoker.Unreachable) as caught:
        NOWHERE.jobs()
    assert "\nstoker.Unreachable: No daemon" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "error",
    [
        stoker.UnknownOption("gpu", ["gpus"]),
        stoker.JobFailed("gone", job_id="5", state="FAILED", job_exit_code=3),
        stoker.Unreachable("away"),
        stoker.NotFound("no job", 3, "not_found"),
    ],
)
def test_errors_travel_between_processes(error: stoker.StokerError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.__dict__) == (type(error), str(error), error.__dict__)


def test_what_a_list_of_texts_is() -> None:
    assert options.as_options({"env": {"A": 5}, "label": "x"}) == {"env": ["A=5"], "label": ["x"]}
