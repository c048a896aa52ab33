"""Jobs that take longer than was said or measured: more is left of them, and nothing else changes.

The figures of the planner: a running job makes room for one that needs 4.5 times less.
"""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.scenario import Afar, gpus
from core.test_policies import asked, begun, job, lab, turn
from core.test_training import counted, listens, training
from stoker.core import events as e
from stoker.core.explain.position import explain_rank
from stoker.core.measurement.estimator import OVERRUN, OVERRUN_TOLERANCE, remaining, time_left
from stoker.core.model.spec import Training
from stoker.core.policies.ranking import rank
from stoker.core.state.timers import due_events, latest_end_of, next_wakeup

HOUR = 3600
FINE = {"grain": 1.0001, "fair": 0.0}
"""The planner without steps that would hide small differences."""


# -- what is left ---------------------------------------------------------------------------


def test_what_is_left_falls_to_nothing_and_rises_again_with_the_overrun() -> None:
    lefts = [time_left(1000, had).seconds for had in (0, 400, 1000, 1100, 1300, 2000, 4000, 9000)]
    assert lefts[:4] == [1000, 600, 0, 0]  # a tenth more may be what restarts have cost
    assert lefts[4:] == sorted(lefts[4:])
    for had, left in zip((1300, 2000, 4000, 9000), lefts[4:], strict=True):
        assert (had - 1000) * OVERRUN / 2**0.5 < left <= (had - 1000) * OVERRUN


@given(expected=st.floats(0, 1e6), had=st.floats(0, 1e7), seconds=st.floats(0, 1e7))
def test_what_is_left_does_not_become_more_before_it_says(
    expected: float, had: float, seconds: float
) -> None:
    now = time_left(expected, had)
    assert now.seconds >= 0
    assert now.grows_in > 0
    later = time_left(expected, had + min(seconds, now.grows_in * 0.999))
    assert later.seconds <= now.seconds * (1 + 1e-9)
    grown = time_left(expected, had + now.grows_in * 1.001 + 1e-6)
    if had >= expected * (1 + OVERRUN_TOLERANCE / OVERRUN) and expected:
        assert grown.seconds > now.seconds


# -- order ----------------------------------------------------------------------------------


def over(story: Afar, seconds: int, ran: float) -> int:
    """A job that was said to take so long, has run, and waits."""
    found = job(story, seconds)
    listens(story, found)
    story.wait(ran)
    story.about(e.PreemptionRequested, found, why="", boot=story.boot)
    story.exited(found, 75, stopped=True)
    return found


@pytest.mark.parametrize("policy", ["planner", "srtf", "srsf"])
def test_a_job_over_its_estimate_goes_before_longer_ones_and_behind_shorter_ones(
    policy: str,
) -> None:
    story = lab(policy, **(FINE if policy == "planner" else {}))
    late = over(story, HOUR, ran=2.5 * HOUR)  # about three quarters of an hour are left of it
    longer, shorter = job(story, 10 * HOUR), job(story, HOUR // 4)
    assert begun(story) == [shorter]
    story.exited(shorter)
    assert begun(story) == [late]
    story.exited(late)
    assert begun(story) == [longer]


@pytest.mark.parametrize("policy", ["backfill", "fifo", "skip", "sjf", "planner", "srsf"])
def test_an_overrun_puts_no_job_behind_one_of_lower_priority(policy: str) -> None:
    story = lab(policy)
    late = over(story, 60, ran=100 * HOUR)
    below = job(story, 60, priority=-1)
    assert begun(story) == [late]
    story.exited(late)
    assert begun(story) == [below]


def test_a_short_job_that_restarts_have_made_late_is_not_put_behind_long_ones() -> None:
    story = lab("planner")
    late = over(story, 28, ran=25 + 60)  # 25 s of work, and 60 s in which it came back
    jobs = [job(story, HOUR) for _ in range(3)]
    assert begun(story) == [late]
    assert all(story.is_(each) == "PENDING" for each in jobs)


# -- of a running job -----------------------------------------------------------------------


def drift(story: Afar, seconds: float) -> None:
    """Let time pass; what it brings is told, and the ranks that it changes are worked out."""
    story.wait(seconds)
    turn(story)


def test_a_running_job_over_its_estimate_is_preempted_in_the_end() -> None:
    story = lab("planner", hysteresis=4.5, ageing=1e9, **FINE)
    late = job(story, HOUR)
    listens(story, late)
    story.now += 0.9 * HOUR  # six minutes are left, by what was said
    job(story, HOUR // 2)
    turn(story)
    assert asked(story, late) == [False]
    drift(story, 0.1 * HOUR)
    assert asked(story, late) == [False]
    moments = 0
    while asked(story, late) == [False]:
        wait = next_wakeup(story.state, story.now, story.boot)
        assert wait is not None
        drift(story, wait + 0.001)
        moments += 1
    # Half the overrun is more than 4.5 times half an hour.
    assert 4.5 * HOUR < story.boot - 1000 - HOUR <= 4.5 * HOUR * 2**0.5
    assert moments < 20


def test_a_training_that_stops_reporting_does_not_look_nearly_done_for_ever() -> None:
    story = lab("planner", **FINE)
    silent = training(story, gpus(1), training=Training(epochs=10))
    listens(story, silent)
    story.now += 100
    counted(story, silent, 1, seconds=100.0)

    def left() -> float:
        found = story.job(silent)
        state = story.state
        seconds = remaining(
            state.record.profiles, state.cluster, found, state.spec(found), story.now
        )
        assert seconds is not None
        return seconds

    assert left() == 900
    story.now += 500
    assert left() == 400
    story.now += 400
    assert left() == 100  # never less than an epoch
    story.now += 3600
    assert left() > 1200
    story.now += 36_000
    assert left() > 12_000


def test_the_rank_of_a_silent_training_is_worked_out_again_when_it_is_late() -> None:
    story = lab("planner", **FINE)
    silent = training(story, gpus(1), training=Training(epochs=10))
    listens(story, silent)
    story.now += 100
    counted(story, silent, 1, seconds=100.0)
    known = story.state.ranking_input(story.job(silent))
    level, until, _ = rank(known, story.now)
    assert story.now + 900 < until < story.now + 1100
    later, again, _ = rank(known, until + 1)
    assert later < level
    assert until < again < inf


# -- reservations ---------------------------------------------------------------------------


def test_an_estimated_end_that_has_passed_moves_to_the_future() -> None:
    story = lab("backfill", gpus=2)
    silent = training(story, gpus(1), training=Training(epochs=10))
    listens(story, silent)
    story.now += 100
    counted(story, silent, 1, seconds=100.0)
    head = story.submit(gpus(2))
    end = 1000 + 100 + 900 * 1.2
    assert latest_end_of(story.state, story.job(silent)) == end
    short = story.submit(gpus(1), limit=600)
    assert turn(story)[0] == [short]
    story.started(short)
    story.exited(short)
    story.now = end - 50  # 600 s do not fit before the end that was expected
    short = story.submit(gpus(1), limit=600)
    assert turn(story)[0] == []
    begins = None
    while begins is None:
        wait = next_wakeup(story.state, story.now, story.boot)
        assert wait is not None
        story.now += wait + 0.001
        for fact in due_events(story.state, story.now, story.boot):
            story.tell(fact)
        if story.state.pending.planning_requested and turn(story)[0] == [short]:
            begins = story.now
        assert story.now < end + 10_000
    assert latest_end_of(story.state, story.job(silent), story.boot) > story.boot + 600
    assert story.is_(head) == "PENDING"


# -- in words -------------------------------------------------------------------------------


def test_the_explanation_names_the_overrun() -> None:
    story = lab("planner")
    late = over(story, HOUR, ran=2.5 * HOUR)
    told = explain_rank(story.state.ranking_input(story.job(late)), story.now)
    assert "longer than the expected 60 min" in told.text
    story = lab("srsf")
    late = over(story, HOUR, ran=2.5 * HOUR)
    told = explain_rank(story.state.ranking_input(story.job(late)), story.now)
    assert "longer than the expected 60 min" in told.text
