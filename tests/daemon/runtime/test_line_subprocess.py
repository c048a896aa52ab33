"""LineSubprocess: lines in both directions, reasons of an end, restarts."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.daemon.runtime.reactor import EpollReactor
from stoker.executors.linux.line_subprocess import LineSubprocess

ECHO = ("-c", "import sys\nfor line in sys.stdin: print(line.strip().upper(), flush=True)")


class ChildFixture:
    """A child with its reactor, the lines it has sent and the reasons of its ends."""

    def __init__(self) -> None:
        self.reactor = EpollReactor()
        self.lines: list[bytes] = []
        self.reasons: list[str] = []
        self.process = LineSubprocess(self.reactor, self.lines.append, self.reasons.append)

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline
            self.reactor.wait(0.05)


@pytest.fixture
def child() -> Iterator[ChildFixture]:
    fixture = ChildFixture()
    yield fixture
    fixture.process.close(10)


def test_lines_longer_than_the_pipe_go_both_ways(child: ChildFixture) -> None:
    assert child.process.start(ECHO)
    assert child.process.send(b"a" * 500_000 + b"\nb\n")
    child.until(lambda: len(child.lines) == 2)
    assert child.lines == [b"A" * 500_000, b"B"]
    assert child.reasons == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit('first\\nlast')", "last"),
        ("pass", "it ended without an error message"),
        ("import os; os.kill(os.getpid(), 9)", "it was killed by SIGKILL"),
    ],
)
def test_an_end_is_reported_once_with_its_reason(
    child: ChildFixture, code: str, reason: str
) -> None:
    assert child.process.start(("-c", code))
    child.until(lambda: child.reasons)
    assert len(child.reasons) == 1
    # A child that was killed may not be reapable yet when its pipes are closed.
    assert child.reasons[0] in (reason, "it ended without an error message")
    assert not child.process.is_running


def test_after_its_end_it_can_be_started_again(child: ChildFixture) -> None:
    assert child.process.start(("-c", "pass"))
    child.until(lambda: child.reasons)
    assert child.process.start(ECHO)
    assert child.process.send(b"again\n")
    child.until(lambda: child.lines)
    assert child.lines == [b"AGAIN"]


def test_a_stopped_child_is_killed_and_reaped_without_a_callback(child: ChildFixture) -> None:
    ignore = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    assert child.process.start(("-c", ignore))
    pid = child.process.pid
    child.process.stop()
    child.process.stop()
    assert not child.process.is_running
    child.until(child.process.reap)
    assert not Path(f"/proc/{pid}").exists()
    assert (child.lines, child.reasons) == ([], [])


def test_lines_after_a_stop_are_dropped(child: ChildFixture) -> None:
    child.process.on_line = lambda line: (child.lines.append(line), child.process.stop())
    assert child.process.start(("-c", "import os, time; os.write(1, b'a\\nb\\n'); time.sleep(60)"))
    child.until(lambda: child.lines)
    child.reactor.wait(0.1)
    assert child.lines == [b"a"]


def test_sending_to_a_child_that_has_ended_fails(child: ChildFixture) -> None:
    assert not child.process.send(b"x\n")
    assert child.process.start(ECHO)
    pid = child.process.pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not child.process.send(b"x\n")
