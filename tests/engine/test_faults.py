"""Internal errors: what is at fault is reported and tried again, and everything else goes on."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import stoker.engine
from engine.test_engine import Asking, EngineFixture
from stoker.core import events as e
from stoker.core.events.instructions import StartProcess
from stoker.core.state.state import State
from stoker.engine import EVENTS, PLANNING, TIMERS, CommandResult, Instant
from stoker.faults import LONGEST_PAUSE_SECONDS, FaultTracker
from stoker.store.port import StoreError, StoreFenced


@pytest.fixture
def fixture() -> EngineFixture:
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
    """Let a function of the engine raise: `fail("plan_events", 3)`."""

    def patch(name: str, times: float, when: Callable[..., bool] = lambda *_: True) -> Failing:
        failing = Failing(getattr(stoker.engine, name), times, when)
        monkeypatch.setattr(stoker.engine, name, failing)
        return failing

    return patch


def faults(fixture: EngineFixture) -> FaultTracker:
    assert fixture.faults is not None
    return fixture.faults


def turn_at(
    fixture: EngineFixture, now: float, *events: e.Event, asks: tuple[Asking, ...] = ()
) -> None:
    fixture.now = now
    fixture.cycle(events, asks)


# -- the planner --------------------------------------------------------------------------


def test_while_the_planner_fails_requests_are_served_and_ends_recorded(
    fixture: EngineFixture, fail: Callable[..., Failing]
):
    fixture.submit(count=3)
    assert fixture.states() == ["CONFIGURING", "CONFIGURING", "PENDING"]
    fail("plan_events", float("inf"))
    asked = fixture.submission()
    turn_at(fixture, 1001, fixture.exit(1), asks=(asked,))
    assert asked.answers == [(4, 1)]
    assert fixture.states() == ["COMPLETED", "CONFIGURING", "PENDING", "PENDING"]
    turn_at(fixture, 1002.5, fixture.exit(2))
    assert fixture.states() == ["COMPLETED", "COMPLETED", "PENDING", "PENDING"]
    assert fixture.store.load().seq == fixture.engine.seq


def test_planning_is_tried_again_after_pauses_that_double(
    fixture: EngineFixture, fail: Callable[..., Failing]
):
    planner = fail("plan_events", 3)
    fixture.submit()  # at 1000: fails within the turn, and once more by itself
    assert planner.calls == 2
    assert fixture.engine.seconds_until_due(fixture.clock()) == 1.0
    turn_at(fixture, 1000.9)
    assert planner.calls == 2
    turn_at(fixture, 1001)
    assert planner.calls == 3
    assert fixture.engine.seconds_until_due(fixture.clock()) == 2.0
    turn_at(fixture, 1002.9)
    assert fixture.states() == ["PENDING"]
    turn_at(fixture, 1003)
    assert fixture.states() == ["CONFIGURING"]
    assert [type(each) for each in fixture.log if isinstance(each, StartProcess)] == [StartProcess]
    assert not faults(fixture).is_failing(PLANNING)
    assert fixture.engine.seconds_until_due(fixture.clock()) is None
    fixture.submit()
    assert fixture.states() == ["CONFIGURING", "CONFIGURING"]


def test_the_pause_has_a_limit(fixture: EngineFixture, fail: Callable[..., Failing]):
    planner = fail("plan_events", float("inf"))
    fixture.submit()
    for _ in range(20):
        turn_at(fixture, fixture.now + LONGEST_PAUSE_SECONDS)
    assert planner.calls == 22
    assert fixture.engine.seconds_until_due(fixture.clock()) == LONGEST_PAUSE_SECONDS


def test_an_engine_begins_with_a_planner_that_fails(fail: Callable[..., Failing]):
    fail("plan_events", float("inf"))
    fixture = EngineFixture(contained=True)
    assert fixture.submit().answers == [(1, 1)]
    assert fixture.states() == ["PENDING"]


def test_a_fault_of_the_planner_is_reported_and_logged_with_the_state(
    fixture: EngineFixture, fail: Callable[..., Failing], caplog: pytest.LogCaptureFixture
):
    fail("plan_events", 2)
    with caplog.at_level(logging.WARNING, "stoker"):
        fixture.submit(priority=7)
        assert faults(fixture).sentence(PLANNING) == (
            "planning failed once: KeyError('1'); next try in 1 s; see stoker daemon log"
        )
        assert faults(fixture).report(all=False) == [faults(fixture).sentence(PLANNING)]
        turn_at(fixture, 1005)
        assert faults(fixture).report() == [
            "planning failed once: KeyError('1') (the last time 5 s ago)"
        ]
    failed, again = caplog.records
    assert failed.exc_info is not None
    assert failed.exc_info[0] is KeyError
    assert "internal error: planning failed once" in failed.getMessage()
    assert "node box: gpu:0 1000/1000 free" in failed.getMessage()
    assert "pending job 1 attempt 0 priority 7" in failed.getMessage()
    assert again.getMessage() == "planning works again after it failed once"


def test_a_repeated_fault_is_logged_at_each_doubling(
    fixture: EngineFixture, fail: Callable[..., Failing], caplog: pytest.LogCaptureFixture
):
    fail("plan_events", float("inf"))
    with caplog.at_level(logging.ERROR, "stoker"):
        fixture.submit()
        for _ in range(20):
            turn_at(fixture, fixture.now + LONGEST_PAUSE_SECONDS)
    assert [record.getMessage().split("\n")[0][-8:] for record in caplog.records] == [
        "led once", " 2 times", " 4 times", " 8 times", "16 times"
    ]  # fmt: skip


def test_a_planner_that_fails_in_the_middle_of_a_plan_starts_nothing(
    fixture: EngineFixture, monkeypatch: pytest.MonkeyPatch
):
    real = stoker.engine.plan_events

    def half(*args: Any) -> Iterator[e.Event]:
        for planned in real(*args):
            yield planned
            raise KeyError("1")

    monkeypatch.setattr(stoker.engine, "plan_events", half)
    fixture.submit(count=2)
    assert fixture.states() == ["PENDING", "PENDING"]
    assert not any(isinstance(each, StartProcess) for each in fixture.log)
    monkeypatch.undo()
    turn_at(fixture, 1001)
    assert fixture.states() == ["CONFIGURING", "CONFIGURING"]


def test_while_draining_a_failing_planner_is_not_said_to_work_again(
    fixture: EngineFixture, fail: Callable[..., Failing]
):
    fail("plan_events", 2)
    fixture.submit()
    fixture.now = 1100
    fixture.cycle(scheduling_enabled=False)
    assert faults(fixture).is_failing(PLANNING)


def test_failing_timers_do_not_keep_jobs_from_starting_nor_the_processor_busy(
    fixture: EngineFixture, fail: Callable[..., Failing]
):
    fail("pre_command_events", 2)
    fixture.submit(begin_in=30.0)
    assert faults(fixture).is_failing(TIMERS)
    assert fixture.submit().answers == [(2, 1)]
    assert fixture.states() == ["PENDING", "CONFIGURING"]
    fail("pre_command_events", float("inf"))
    fixture.now = 1040
    fixture.cycle()  # what is due stays due
    wait = fixture.engine.seconds_until_due(fixture.clock())
    assert wait is not None
    assert wait >= 1.0


# -- requests and events ------------------------------------------------------------------


def broken(state: State, now: Instant) -> CommandResult:
    raise ValueError("a bug of a handler")


def half_broken(state: State, now: Instant) -> CommandResult:
    return CommandResult(events=[e.JobHeld(at=0, job=1), e.JobHeld(at=0, job=99)])


@pytest.mark.parametrize("decide", [broken, half_broken])
def test_a_request_that_fails_is_refused_and_the_others_of_its_turn_are_granted(
    fixture: EngineFixture, decide: Any
):
    fixture.submit()
    before, bad, after = fixture.submission(), Asking(decide), fixture.submission()
    turn_at(fixture, 1001, fixture.exit(1), asks=(before, bad, after))
    assert [each.code for each in bad.refusals] == ["internal"]
    assert "stoker daemon log" in bad.refusals[0].message
    assert bad.answers == []
    assert (before.answers, after.answers) == ([(2, 1)], [(3, 1)])
    assert fixture.states() == ["COMPLETED", "CONFIGURING", "CONFIGURING"]
    [text] = faults(fixture).report()
    assert text.startswith("request failed once")
    assert faults(fixture).report(all=False) == []


def test_an_answer_that_cannot_be_made_says_that_the_request_was_granted(fixture: EngineFixture):
    def decide(state: State, now: Instant) -> CommandResult:
        return CommandResult(events=[e.FailuresDismissed(at=0, jobs=())], reply=lambda _: 1 // 0)

    bad, good = Asking(decide), fixture.submission()
    turn_at(fixture, 1001, asks=(bad, good))
    assert "was carried out" in bad.refusals[0].message
    assert good.answers == [(1, 1)]
    assert fixture.states() == ["CONFIGURING"]


def test_an_event_that_cannot_be_applied_is_set_aside_and_tried_again(
    fixture: EngineFixture, fail: Callable[..., Failing]
):
    fixture.submit(count=2)
    fail("apply", 3, lambda _, event: isinstance(event, e.ProcessExited) and event.job == 1)
    turn_at(fixture, 1001, fixture.exit(1), fixture.exit(2))
    assert fixture.states() == ["CONFIGURING", "COMPLETED"]
    assert fixture.engine.has_unrecorded_events
    assert faults(fixture).is_failing(EVENTS)
    turn_at(fixture, 1002)
    assert fixture.states() == ["CONFIGURING", "COMPLETED"]
    turn_at(fixture, 1004)
    assert fixture.states() == ["COMPLETED", "COMPLETED"]
    assert not fixture.engine.has_unrecorded_events
    assert not faults(fixture).is_failing(EVENTS)


# -- the store ----------------------------------------------------------------------------


def test_fencing_is_never_contained(fixture: EngineFixture, fail: Callable[..., Failing]):
    fail("plan_events", 1)
    fixture.store.another().acquire_term()
    with pytest.raises(StoreFenced):
        fixture.submit()


def test_a_store_that_fails_while_a_turn_is_repeated_in_parts_loses_no_event(
    fixture: EngineFixture, fail: Callable[..., Failing]
):
    fixture.submit(count=2)
    fail("plan_events", 1)
    fixture.store.failure = lambda _: StoreError("locked")
    asked = fixture.submission()
    with pytest.raises(StoreError):
        turn_at(fixture, 1001, fixture.exit(1), fixture.exit(2), asks=(asked,))
    assert [each.code for each in asked.refusals] == ["unavailable"]
    fixture.store.failure = lambda _: None
    turn_at(fixture, 1002)
    assert fixture.states() == ["COMPLETED", "COMPLETED"]


def test_a_state_that_cannot_be_read_back_is_read_before_anything_else(
    fixture: EngineFixture, fail: Callable[..., Failing], monkeypatch: pytest.MonkeyPatch
):
    fixture.submit()
    fail("plan_events", 1)
    load = fixture.store.load

    def unreadable() -> Any:
        raise StoreError("locked")

    monkeypatch.setattr(fixture.store, "load", unreadable)
    with pytest.raises(StoreError):
        turn_at(fixture, 1001, fixture.exit(1))
    asked = fixture.submission()
    with pytest.raises(StoreError):
        turn_at(fixture, 1002, asks=(asked,))
    assert [each.code for each in asked.refusals] == ["unavailable"]
    monkeypatch.setattr(fixture.store, "load", load)
    turn_at(fixture, 1003)
    assert fixture.states() == ["COMPLETED"]
