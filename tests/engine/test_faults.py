"""Internal errors: what is at fault is reported and tried again, and everything else goes on."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import stoker.engine
from engine.test_engine import Asking, EngineFixture
from stoker.core import events as e
from stoker.core.instructions import StartProcess
from stoker.core.state import State
from stoker.engine import EVENTS, PLANNING, TIMERS, CommandResult, Instant
from stoker.faults import LONGEST_PAUSE_SECONDS, FaultTracker
from stoker.store.port import StoreError, StoreFenced


@pytest.fixture
def room() -> EngineFixture:
    return EngineFixture(contained=True)


class Failing:
    """A function that raises a number of times, and then does what it should."""

    def __init__(self, real: Callable[..., Any], times: float, when: Callable[..., bool]) -> None:
        self.real, self.times, self.when = real, times, when
        self.calls = 0

    def __call__(self, *args: Any, **more: Any) -> Any:
        if self.times and self.when(*args):
            self.times -= 1
            self.calls += 1
            raise KeyError("1")
        return self.real(*args, **more)


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Failing]:
    """Let a function of the engine raise: `fail("planned", 3)`."""

    def patch(name: str, times: float, when: Callable[..., bool] = lambda *_: True) -> Failing:
        failing = Failing(getattr(stoker.engine, name), times, when)
        monkeypatch.setattr(stoker.engine, name, failing)
        return failing

    return patch


def faults(room: EngineFixture) -> FaultTracker:
    assert room.faults is not None
    return room.faults


def turn_at(
    room: EngineFixture, now: float, *events: e.Event, asks: tuple[Asking, ...] = ()
) -> None:
    room.now = now
    room.cycle(events, asks)


# -- the planner --------------------------------------------------------------------------


def test_while_the_planner_fails_requests_are_served_and_ends_recorded(
    room: EngineFixture, fail: Callable[..., Failing]
):
    room.submit(count=3)
    assert room.states() == ["CONFIGURING", "CONFIGURING", "PENDING"]
    fail("planned", float("inf"))
    asked = room.submission()
    turn_at(room, 1001, room.exit(1), asks=(asked,))
    assert asked.answers == [(4, 1)]
    assert room.states() == ["COMPLETED", "CONFIGURING", "PENDING", "PENDING"]
    turn_at(room, 1002.5, room.exit(2))
    assert room.states() == ["COMPLETED", "COMPLETED", "PENDING", "PENDING"]
    assert room.store.load().seq == room.engine.seq


def test_planning_is_tried_again_after_pauses_that_double(
    room: EngineFixture, fail: Callable[..., Failing]
):
    planner = fail("planned", 3)
    room.submit()  # at 1000: fails within the turn, and once more by itself
    assert planner.calls == 2
    assert room.engine.seconds_until_due(room.clock()) == 1.0
    turn_at(room, 1000.9)
    assert planner.calls == 2
    turn_at(room, 1001)
    assert planner.calls == 3
    assert room.engine.seconds_until_due(room.clock()) == 2.0
    turn_at(room, 1002.9)
    assert room.states() == ["PENDING"]
    turn_at(room, 1003)
    assert room.states() == ["CONFIGURING"]
    assert [type(each) for each in room.log if isinstance(each, StartProcess)] == [StartProcess]
    assert not faults(room).is_failing(PLANNING)
    assert room.engine.seconds_until_due(room.clock()) is None
    room.submit()
    assert room.states() == ["CONFIGURING", "CONFIGURING"]


def test_the_pause_has_a_limit(room: EngineFixture, fail: Callable[..., Failing]):
    planner = fail("planned", float("inf"))
    room.submit()
    for _ in range(20):
        turn_at(room, room.now + LONGEST_PAUSE_SECONDS)
    assert planner.calls == 22
    assert room.engine.seconds_until_due(room.clock()) == LONGEST_PAUSE_SECONDS


def test_an_engine_begins_with_a_planner_that_fails(fail: Callable[..., Failing]):
    fail("planned", float("inf"))
    room = EngineFixture(contained=True)
    assert room.submit().answers == [(1, 1)]
    assert room.states() == ["PENDING"]


def test_a_fault_of_the_planner_is_reported_and_logged_with_the_state(
    room: EngineFixture, fail: Callable[..., Failing], caplog: pytest.LogCaptureFixture
):
    fail("planned", 2)
    with caplog.at_level(logging.WARNING, "stoker"):
        room.submit(priority=7)
        assert faults(room).sentence(PLANNING) == (
            "planning failed once: KeyError('1'); next try in 1 s; see stoker daemon log"
        )
        assert faults(room).report(all=False) == [faults(room).sentence(PLANNING)]
        turn_at(room, 1005)
        assert faults(room).report() == [
            "planning failed once: KeyError('1') (the last time 5 s ago)"
        ]
    failed, again = caplog.records
    assert failed.exc_info is not None
    assert failed.exc_info[0] is KeyError
    assert "internal error: planning failed once" in failed.getMessage()
    assert "node box: gpu:0 1000/1000 free" in failed.getMessage()
    assert "ready job 1 attempt 0 priority 7" in failed.getMessage()
    assert again.getMessage() == "planning works again after it failed once"


def test_a_repeated_fault_is_logged_at_each_doubling(
    room: EngineFixture, fail: Callable[..., Failing], caplog: pytest.LogCaptureFixture
):
    fail("planned", float("inf"))
    with caplog.at_level(logging.ERROR, "stoker"):
        room.submit()
        for _ in range(20):
            turn_at(room, room.now + LONGEST_PAUSE_SECONDS)
    assert [record.getMessage().split("\n")[0][-8:] for record in caplog.records] == [
        "led once", " 2 times", " 4 times", " 8 times", "16 times"
    ]  # fmt: skip


def test_a_planner_that_fails_in_the_middle_of_a_plan_starts_nothing(
    room: EngineFixture, monkeypatch: pytest.MonkeyPatch
):
    real = stoker.engine.planned

    def half(*args: Any) -> Iterator[e.Event]:
        for planned in real(*args):
            yield planned
            raise KeyError("1")

    monkeypatch.setattr(stoker.engine, "planned", half)
    room.submit(count=2)
    assert room.states() == ["PENDING", "PENDING"]
    assert not any(isinstance(each, StartProcess) for each in room.log)
    monkeypatch.undo()
    turn_at(room, 1001)
    assert room.states() == ["CONFIGURING", "CONFIGURING"]


def test_while_draining_a_failing_planner_is_not_said_to_work_again(
    room: EngineFixture, fail: Callable[..., Failing]
):
    fail("planned", 2)
    room.submit()
    room.now = 1100
    room.cycle(scheduling_enabled=False)
    assert faults(room).is_failing(PLANNING)


def test_failing_timers_do_not_keep_jobs_from_starting_nor_the_processor_busy(
    room: EngineFixture, fail: Callable[..., Failing]
):
    fail("before_requests", 2)
    room.submit(begin_in=30.0)
    assert faults(room).is_failing(TIMERS)
    assert room.submit().answers == [(2, 1)]
    assert room.states() == ["PENDING", "CONFIGURING"]
    fail("before_requests", float("inf"))
    room.now = 1040
    room.cycle()  # what is due stays due
    wait = room.engine.seconds_until_due(room.clock())
    assert wait is not None
    assert wait >= 1.0


# -- requests and events ------------------------------------------------------------------


def broken(state: State, now: Instant) -> CommandResult:
    raise ValueError("a bug of a handler")


def half_broken(state: State, now: Instant) -> CommandResult:
    return CommandResult(events=[e.JobHeld(at=0, job=1), e.JobHeld(at=0, job=99)])


@pytest.mark.parametrize("decide", [broken, half_broken])
def test_a_request_that_fails_is_refused_and_the_others_of_its_turn_are_granted(
    room: EngineFixture, decide: Any
):
    room.submit()
    before, bad, after = room.submission(), Asking(decide), room.submission()
    turn_at(room, 1001, room.exit(1), asks=(before, bad, after))
    assert [each.code for each in bad.refusals] == ["internal"]
    assert "stoker daemon log" in bad.refusals[0].message
    assert bad.answers == []
    assert (before.answers, after.answers) == ([(2, 1)], [(3, 1)])
    assert room.states() == ["COMPLETED", "CONFIGURING", "CONFIGURING"]
    [text] = faults(room).report()
    assert text.startswith("request failed once")
    assert faults(room).report(all=False) == []


def test_an_answer_that_cannot_be_made_says_that_the_request_was_granted(room: EngineFixture):
    def decide(state: State, now: Instant) -> CommandResult:
        return CommandResult(events=[e.JobsSeen(at=0, jobs=())], reply=lambda _: 1 // 0)

    bad, good = Asking(decide), room.submission()
    turn_at(room, 1001, asks=(bad, good))
    assert "was carried out" in bad.refusals[0].message
    assert good.answers == [(1, 1)]
    assert room.states() == ["CONFIGURING"]


def test_an_event_that_cannot_be_applied_is_set_aside_and_tried_again(
    room: EngineFixture, fail: Callable[..., Failing]
):
    room.submit(count=2)
    fail("apply", 3, lambda _, event: isinstance(event, e.ProcessExited) and event.job == 1)
    turn_at(room, 1001, room.exit(1), room.exit(2))
    assert room.states() == ["CONFIGURING", "COMPLETED"]
    assert room.engine.has_unrecorded_events
    assert faults(room).is_failing(EVENTS)
    turn_at(room, 1002)
    assert room.states() == ["CONFIGURING", "COMPLETED"]
    turn_at(room, 1004)
    assert room.states() == ["COMPLETED", "COMPLETED"]
    assert not room.engine.has_unrecorded_events
    assert not faults(room).is_failing(EVENTS)


# -- the store ----------------------------------------------------------------------------


def test_fencing_is_never_contained(room: EngineFixture, fail: Callable[..., Failing]):
    fail("planned", 1)
    room.store.another().acquire_term()
    with pytest.raises(StoreFenced):
        room.submit()


def test_a_store_that_fails_while_a_turn_is_repeated_in_parts_loses_no_event(
    room: EngineFixture, fail: Callable[..., Failing]
):
    room.submit(count=2)
    fail("planned", 1)
    room.store.failure = lambda _: StoreError("locked")
    asked = room.submission()
    with pytest.raises(StoreError):
        turn_at(room, 1001, room.exit(1), room.exit(2), asks=(asked,))
    assert [each.code for each in asked.refusals] == ["unavailable"]
    room.store.failure = lambda _: None
    turn_at(room, 1002)
    assert room.states() == ["COMPLETED", "COMPLETED"]


def test_a_state_that_cannot_be_read_back_is_read_before_anything_else(
    room: EngineFixture, fail: Callable[..., Failing], monkeypatch: pytest.MonkeyPatch
):
    room.submit()
    fail("planned", 1)
    load = room.store.load

    def unreadable() -> Any:
        raise StoreError("locked")

    monkeypatch.setattr(room.store, "load", unreadable)
    with pytest.raises(StoreError):
        turn_at(room, 1001, room.exit(1))
    asked = room.submission()
    with pytest.raises(StoreError):
        turn_at(room, 1002, asks=(asked,))
    assert [each.code for each in asked.refusals] == ["unavailable"]
    monkeypatch.setattr(room.store, "load", load)
    turn_at(room, 1003)
    assert room.states() == ["COMPLETED"]
