"""Calls of squeue per minute, whatever the number of jobs is."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from stoker.executors.linux.thread_pool import TransferPool
from stoker.executors.slurm.commands import SlurmCommands, SlurmJob
from stoker.executors.slurm.monitor import SlurmMonitor
from virtual_reactor import VirtualReactor

PREFIX = "stoker-01234567-lab"


class ImmediatePool:
    """Does the work at once, in the same thread."""

    def submit(self, work: Callable[[], Any], on_done: Callable[[Any], None]) -> None:
        on_done(work())


class CountingCommands(SlurmCommands):
    """A Slurm in which no job changes; calls are counted."""

    def __init__(self, lab: "Lab", count: int, state: str) -> None:
        super().__init__()
        self.lab, self.calls = lab, Counter[str]()
        row = f"{{0}}|{PREFIX}-{{0}}.0|{state}|n1|1794966613|1794963013|None\n"
        self.rows = "".join(row.format(index) for index in range(count))

    def _run(
        self, words: Sequence[str], text: str = "", environment: dict[str, str] | None = None
    ) -> str:
        self.calls[words[0]] += 1
        self.lab.now += self.lab.answer_seconds
        return self.rows if words[0] == "squeue" else ""


class Watcher:
    """A pilot or an attempt."""

    def on_job(self, job: SlurmJob | None) -> None:
        assert job is not None


class Lab:
    """A cluster with a number of jobs in one state, watched from now on."""

    def __init__(self, count: int, state: str, answer_seconds: float = 0.02) -> None:
        self.now, self.answer_seconds = 0.0, answer_seconds
        self.commands = CountingCommands(self, count, state)
        self.reactor = VirtualReactor(lambda: self.now)
        self.monitor = SlurmMonitor(self.commands, PREFIX, self.reactor)
        self.monitor.pool = cast("TransferPool", ImmediatePool())
        self.monitor.open(lambda error: None)
        for index in range(count):
            self.monitor.watch(f"{PREFIX}-{index}.0", Watcher())

    def calls(self, seconds: float) -> dict[str, int]:
        """Return the calls of the next seconds."""
        self.commands.calls.clear()
        until = self.now + seconds
        while (wait := self.reactor.seconds_until_timer()) is not None and self.now + wait < until:
            self.now += wait
            self.reactor.run_timers()
        self.now = max(self.now, until)
        return dict(self.commands.calls)


@pytest.mark.parametrize("count", [100, 10_000])
@pytest.mark.parametrize(("state", "first", "later"), [("RUNNING", 4, 4), ("PENDING", 25, 6)])
def test_the_calls_of_a_minute_do_not_depend_on_the_number_of_jobs(
    count: int, state: str, first: int, later: int
) -> None:
    lab = Lab(count, state)
    assert lab.calls(60) == {"squeue": first}
    lab.calls(60)
    assert lab.calls(600) == {"squeue": later * 10}


def test_without_jobs_there_is_one_call_per_minute() -> None:
    assert Lab(0, "").calls(600) == {"squeue": 10}


def test_a_controller_that_answers_slowly_gets_fewer_calls() -> None:
    fast, slow = Lab(8, "PENDING"), Lab(8, "PENDING", answer_seconds=2.0)
    for lab in (fast, slow):
        lab.calls(120)
    assert slow.calls(600)["squeue"] * 2 <= fast.calls(600)["squeue"]
