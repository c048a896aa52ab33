"""InstructionDispatcher: where each instruction goes, and when a remote start may go out."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from core.scenario import Scenario
from stoker.core.events import instructions as i
from stoker.core.model.job import JobState
from stoker.core.model.resources import Placement
from stoker.daemon.control.dispatcher import InstructionDispatcher
from stoker.daemon.runtime.clock import system_clock
from stoker.faults import FaultTracker

HERE, ELSEWHERE = Placement("box", ()), Placement("far", ())


class Recorder:
    """Records calls of any method as `name.method` with the arguments."""

    def __init__(self, name: str, calls: list[tuple[Any, ...]], **fixed: Any) -> None:
        self._name, self._calls = name, calls
        self.__dict__.update(fixed)

    def __getattr__(self, method: str) -> Any:
        def call(*args: Any) -> None:
            self._calls.append((f"{self._name}.{method}", *args))

        return call


class DispatcherFixture:
    """A dispatcher between recorders."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.scenario = Scenario()
        self.engine = SimpleNamespace(unsynced=False, state=self.scenario.state)
        self.faults = FaultTracker(system_clock)
        self.broken = False
        registry = Recorder(
            "registry", self.calls, is_remote=lambda placement: placement.node != "box"
        )
        registry.start = self.start
        self.dispatcher = InstructionDispatcher(
            cast("Any", self.engine),
            cast("Any", registry),
            Recorder("local", self.calls).cancel_start,
            10.0,
            cast("Any", Recorder("stops", self.calls)),
            cast("Any", Recorder("hooks", self.calls)),
            cast("Any", Recorder("sync", self.calls)),
            self.faults,
        )

    def start(self, start: i.StartProcess) -> None:
        if self.broken:
            raise KeyError("a bug")
        self.calls.append(("registry.start", start))

    def execute(self, *instructions: i.Instruction) -> list[tuple[Any, ...]]:
        self.calls.clear()
        self.dispatcher.execute(list(instructions))
        return list(self.calls)


@pytest.fixture
def fixture() -> DispatcherFixture:
    return DispatcherFixture()


def start(placement: Placement, job: int = 1) -> i.StartProcess:
    return i.StartProcess(job=job, attempt=0, placement=placement)


def test_a_local_start_is_made_at_once(
    fixture: DispatcherFixture,
):
    wanted = start(HERE)
    assert fixture.execute(wanted) == [("registry.start", wanted)]


def test_a_remote_start_waits_until_the_journal_is_on_disk(fixture: DispatcherFixture):
    wanted = start(ELSEWHERE)
    fixture.engine.unsynced = True
    assert fixture.execute(wanted) == [("sync.request", 0.0)]
    assert fixture.dispatcher.take_deferred() == [wanted]
    assert fixture.dispatcher.take_deferred() == []
    fixture.engine.unsynced = False
    assert fixture.execute(wanted) == [("registry.start", wanted)]


def test_instructions_for_attempts_go_to_the_registry(fixture: DispatcherFixture):
    calls = fixture.execute(
        i.TerminateAttempt(1, 0), i.TerminateAttempt(1, 0, at_once=True), i.SignalAttempt(1, 0, 15),
        i.SuspendAttempt(1, 0), i.ResumeAttempt(1, 0),
    )  # fmt: skip
    assert calls == [
        ("registry.terminate", (1, 0), 10.0), ("registry.terminate", (1, 0), 0.0),
        ("registry.signal", (1, 0), 15, False, False),
        ("registry.suspend", (1, 0)), ("registry.resume", (1, 0)),
    ]  # fmt: skip


def test_stop_requests_and_hooks_have_their_own_parts(fixture: DispatcherFixture):
    calls = fixture.execute(
        i.RequestStop(1, 0), i.WithdrawStop(1, 0), i.RunJobEndHook(job=1), i.RunQueueEmptyHook()
    )
    assert calls == [
        ("stops.send", 1, 0), ("stops.withdraw", 1, 0),
        ("hooks.run_job_end", 1), ("hooks.run_queue_empty",),
    ]  # fmt: skip


def test_a_start_that_fails_is_cancelled_and_the_next_instruction_is_executed(
    fixture: DispatcherFixture,
):
    fixture.broken = True
    wanted = start(HERE)
    calls = fixture.execute(wanted, i.RunQueueEmptyHook())
    assert calls == [
        ("local.cancel_start", (1, 0), "internal error: KeyError('a bug')"),
        ("hooks.run_queue_empty",),
    ]
    assert fixture.faults.report()[0].startswith("instruction StartProcess failed once")


def test_deferred_starts_are_released_unless_they_were_cancelled(fixture: DispatcherFixture):
    scenario, dispatcher = fixture.scenario, fixture.dispatcher
    runs, ends, removed = (scenario.submit() for _ in range(3))
    scenario.plan()
    scenario.state.jobs[ends].state = JobState.COMPLETING
    del scenario.state.jobs[removed]
    starts = [start(ELSEWHERE, job) for job in (runs, ends, removed)]
    dispatcher.release_deferred(starts)
    assert fixture.calls == [
        ("registry.start", starts[0]),
        ("registry.abort_start", starts[1], "cancelled before it was sent"),
    ]
