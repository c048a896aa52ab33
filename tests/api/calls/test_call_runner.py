"""The call runner alone: stop requests and damaged files."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import stoker
from e2e.daemon_fixture import until
from stoker.api.calls import result_files
from stoker.api.calls.parameters import Settings
from stoker.api.calls.result_files import Call, Outcome

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Counter:
    """Counts until a file is there, and can be stopped and go on."""

    def __init__(self, mark: Path) -> None:
        self.mark, self.starts = mark, 0

    def __call__(self, go: Path) -> int:
        self.starts += 1
        self.mark.with_suffix(f".{self.starts}").touch()
        while not go.exists():
            time.sleep(0.01)
        return self.starts

    def checkpoint(self, go: Path) -> "stoker.DelayedSubmission":
        return stoker.DelayedSubmission(self, go)


class Bench:
    """Runs a call as the daemon would, without one."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.go = base / "go"

    def write(self, function: Callable[..., Any], *args: object, **settings: Any) -> None:
        known = Settings(options={}, signal=signal.SIGUSR2, **settings)
        self.batch = result_files.write_calls(
            str(self.base / "calls"), "/nowhere", "key", [Call(function, args)], known
        )

    def start(self, **more: str) -> "subprocess.Popen[str]":
        argv = self.batch.what["argv"]
        assert isinstance(argv, list)
        return subprocess.Popen(
            argv,
            env={**os.environ, **self.batch.variables, **more},
            cwd=self.base,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, **more: str) -> tuple[int, str]:
        process = self.start(**more)
        printed = process.communicate(timeout=30)[0]
        return process.returncode, printed

    def outcome(self) -> Outcome | None:
        return result_files.read_outcome(Path(self.batch.folder, "0.result"), "5")

    def stop_at(self, mark: Path, **more: str) -> tuple[int, str]:
        """Run it, and ask it to stop when there is this file."""
        process = self.start(**more)
        until(mark.exists)
        process.send_signal(signal.SIGUSR2)
        printed = process.communicate(timeout=30)[0]
        return process.returncode, printed


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    return Bench(tmp_path)


def test_it_needs_nothing_but_the_standard_library(bench: Bench) -> None:
    bench.write(max, 3, 4)
    argv = bench.batch.what["argv"]
    assert isinstance(argv, list)
    bare = [argv[0], "-S", "-c", _WITHOUT_STOKER, *argv[3:]]
    environment = {**os.environ, **bench.batch.variables}
    done = subprocess.run(
        bare, env=environment, capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[]\n"


_WITHOUT_STOKER = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    print([name for name in sys.modules if name.startswith("stoker")])
    sys.exit(end.code)
"""


def test_a_call_saves_its_state_at_a_stop_request_and_resumes(bench: Bench) -> None:
    mark = bench.base / "mark"
    bench.write(Counter(mark), bench.go)
    code, printed = bench.stop_at(mark.with_suffix(".1"))
    assert (code, "the state is saved" in printed) == (75, True), printed
    assert bench.outcome() is None
    assert bench.stop_at(mark.with_suffix(".2"))[0] == 75
    bench.go.touch()
    assert bench.run() == (0, "")
    assert bench.outcome() == Outcome(3)


def test_what_submitit_calls_delayed_is_understood(bench: Bench) -> None:
    class Theirs(Counter):
        def checkpoint(self, go: Path) -> Any:
            class DelayedSubmission:
                function, args, kwargs = self, (go,), {}

            return DelayedSubmission()

    mark = bench.base / "mark"
    bench.write(Theirs(mark), bench.go)
    assert bench.stop_at(mark.with_suffix(".1"))[0] == 75
    bench.go.touch()
    assert bench.run()[0] == 0
    assert bench.outcome() == Outcome(2)


def test_time_that_is_up_once_too_often(bench: Bench) -> None:
    mark = bench.base / "mark"
    bench.write(Counter(mark), bench.go, timeouts=1)
    soon = {"STOKER_DEADLINE": str(time.time() + 5)}
    assert bench.stop_at(mark.with_suffix(".1"), **soon)[0] == 75
    assert bench.stop_at(mark.with_suffix(".2"))[0] == 75, "making room is not counted"
    code, printed = bench.stop_at(mark.with_suffix(".3"), **soon)
    assert code == 124
    assert "2 times" in printed
    assert bench.outcome() is None
    bench.go.touch()
    assert bench.run()[0] == 0, "what it saved is still there"
    assert bench.outcome() == Outcome(4)


def test_a_call_without_checkpoint_starts_over(bench: Bench) -> None:
    def wait(mark: Path, go: Path) -> str:
        mark.touch()
        while not go.exists():
            time.sleep(0.01)
        return "done"

    mark = bench.base / "mark"
    bench.write(wait, mark, bench.go)
    code, printed = bench.stop_at(mark)
    assert (code, "run again from the start" in printed) == (75, True)
    bench.go.touch()
    assert bench.run()[0] == 0
    assert bench.outcome() == Outcome("done")


def test_a_call_without_checkpoint_has_until_its_limit(bench: Bench) -> None:
    def wait(mark: Path, go: Path) -> str:
        mark.touch()
        until(go.exists)
        return "done"

    bench.write(wait, bench.base / "mark", bench.go)
    process = bench.start(STOKER_DEADLINE=str(time.time() + 5))
    until((bench.base / "mark").exists)
    process.send_signal(signal.SIGUSR2)
    bench.go.touch()
    assert process.wait(30) == 0
    assert process.stdout is not None
    process.stdout.close()
    assert bench.outcome() == Outcome("done")


def test_a_checkpoint_that_returns_nothing_is_the_end(bench: Bench) -> None:
    class Ends(Counter):
        def checkpoint(self, go: Path) -> Any:
            return None

    mark = bench.base / "mark"
    bench.write(Ends(mark), bench.go)
    code, printed = bench.stop_at(mark.with_suffix(".1"))
    assert (code, "returned None" in printed) == (1, True)
    assert bench.outcome() is None


def test_a_checkpoint_that_raises_is_reported(bench: Bench) -> None:
    class Fails(Counter):
        def checkpoint(self, go: Path) -> Any:
            raise OSError("no space")

    mark = bench.base / "mark"
    bench.write(Fails(mark), bench.go)
    assert bench.stop_at(mark.with_suffix(".1"))[0] == 1
    found = bench.outcome()
    assert found is not None
    assert isinstance(found.error, OSError)


def test_a_function_that_swallows_the_stop_is_stopped_all_the_same(bench: Bench) -> None:
    class Stubborn(Counter):
        def __call__(self, go: Path) -> int:
            try:
                return super().__call__(go)
            except SystemExit:
                return -1

    mark = bench.base / "mark"
    bench.write(Stubborn(mark), bench.go)
    assert bench.stop_at(mark.with_suffix(".1"))[0] == 75
    assert bench.outcome() is None


@pytest.mark.parametrize("timeouts", [0, 3])
def test_a_function_that_swallows_everything_for_ever_is_stopped_all_the_same(
    bench: Bench, timeouts: int
) -> None:
    class Deaf(Counter):
        def __call__(self, go: Path) -> int:
            print("last words")  # into a buffer
            while True:
                with contextlib.suppress(BaseException):
                    super().__call__(go)

    mark = bench.base / "mark"
    bench.write(Deaf(mark), bench.go, signal_delay=1, timeouts=timeouts)
    code, printed = bench.stop_at(mark.with_suffix(".1"), STOKER_DEADLINE=str(time.time() + 2))
    assert code == (75 if timeouts else 124)
    assert "last words" in printed
    assert ("max_num_timeout is 0" in printed) == (not timeouts)
    assert bench.outcome() is None


@pytest.mark.parametrize("wrong", [5, stoker.DelayedSubmission(None)])  # type: ignore[arg-type]
def test_a_checkpoint_that_returns_another_type_is_reported(bench: Bench, wrong: object) -> None:
    class Wrong(Counter):
        def checkpoint(self, go: Path) -> Any:
            return wrong

    mark = bench.base / "mark"
    bench.write(Wrong(mark), bench.go)
    assert bench.stop_at(mark.with_suffix(".1"))[0] == 1
    found = bench.outcome()
    assert found is not None
    assert isinstance(found.error, TypeError)
    assert "DelayedSubmission" in str(found.error)


def test_a_stop_request_after_the_end_does_not_start_over(bench: Bench) -> None:
    class Slow:
        """Is being pickled when the signal comes."""

        def __init__(self, mark: Path, heard: Path) -> None:
            self.mark, self.heard = mark, heard

        def __reduce__(self) -> Any:
            self.mark.touch()
            until(self.heard.exists)
            return (int, (7,))

    def call(mark: Path, count: Path, heard: Path) -> Slow:
        with count.open("a") as file:
            file.write("x")
        return Slow(mark, heard)

    mark, count = bench.base / "mark", bench.base / "count"
    bench.write(call, mark, count, bench.base / "calls" / "key" / "0.over")
    assert bench.stop_at(mark)[0] == 0
    assert bench.run()[0] == 0
    assert count.read_text() == "x"
    assert bench.outcome() == Outcome(7)


def test_processes_that_the_function_forked_do_not_save(bench: Bench) -> None:
    def forks(mark: Path) -> int:
        pid = os.fork()
        if pid == 0:
            mark.touch()
            time.sleep(0.3)
            os._exit(3)
        while not mark.exists():
            time.sleep(0.01)
        os.kill(pid, signal.SIGUSR2)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    bench.write(forks, bench.base / "mark")
    assert bench.run()[0] == 0
    assert bench.outcome() == Outcome(3)


def test_another_version_of_python_is_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (2, 7, 0, "final", 0))
    bench.write(max, 3, 4)
    monkeypatch.undo()
    assert bench.run()[0] == 1
    found = bench.outcome()
    assert found is not None
    assert "was made by Python 2.7" in str(found.error)


def test_exits_and_missing_modules_come_back(bench: Bench) -> None:
    bench.write(sys.exit, 3)
    assert bench.run()[0] == 1
    found = bench.outcome()
    assert found is not None
    assert isinstance(found.error, SystemExit)


def test_what_is_left_of_a_result_is_no_result(bench: Bench) -> None:
    bench.write(max, 3, 4)
    assert bench.run()[0] == 0
    path = Path(bench.batch.folder, "0.result")
    path.write_bytes(path.read_bytes()[:-3])
    found = bench.outcome()
    assert found is not None
    assert "cannot be read" in str(found.error)


def test_a_folder_with_submitits_percent_signs() -> None:
    assert result_files.fixed_folder("/a/b/%j/c") == "/a/b"
    assert result_files.fixed_folder("/a/b") == "/a/b"
