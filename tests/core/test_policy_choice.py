"""Choosing a policy while jobs wait and run, and what `why` says of the order it gives."""

from typing import Any

import pytest

from core.scenario import Afar, gpus
from core.test_training import counted, listens, progress, training
from stoker.core import events as e
from stoker.core.estimate import remaining
from stoker.core.explain import Why, why
from stoker.core.job import Job, Training
from stoker.core.outlook import Kind, Span
from stoker.core.policy.order import in_order
from stoker.core.policy.rules import POLICIES

HOUR = 3600.0


def choose(story: Afar, name: str, queue: str = "*", **parameters: float) -> None:
    story.tell(e.PolicyChosen(at=story.now, queue=queue, name=name, parameters=parameters))


def planner(story: Afar) -> None:
    """With figures of its own, so that they can be told beforehand."""
    week = 7 * 24 * HOUR
    figures = {"floor": 600.0, "quantum": 600.0, "hysteresis": 2.0, "patience": week}
    choose(story, "planner", **figures, overdue=0.0, fair=0.0)


def line(story: Afar) -> list[int]:
    return [job.id for job in in_order(story.state.line, story.state.jobs, 100)]


def told(story: Afar, job: int) -> Why:
    state, at = story.state, story.now

    def measured(other: Job) -> Span | None:
        """The end of a job whose epochs were measured, as a forecast has it."""
        left = remaining(state.rest.families, state.cluster, other, state.spec(other), at)
        return Span(at, at + left, None, Kind.EPOCHS, "") if left is not None else None

    return why(state, story.job(job), at, story.boot, measured)


def full(gpus: int = 1, **fields: Any) -> tuple[Afar, int]:
    """A machine whose GPUs one job has, and that job."""
    story = Afar(gpus=gpus)
    first = story.submit(_gpus(gpus), **fields)
    story.run(first)
    return story, first


def _gpus(count: int) -> Any:
    return gpus(count)


# -- switching ------------------------------------------------------------------------------


def test_whoever_waits_stands_anew_and_back_again() -> None:
    story, _ = full()
    long, short = story.submit(limit=9000), story.submit(limit=1200)
    assert line(story) == [long, short]
    planner(story)
    assert line(story) == [short, long]
    choose(story, "makespan")
    assert line(story) == [long, short]
    choose(story, "")
    assert line(story) == [long, short]


def test_a_queue_may_go_by_something_else_than_all_others() -> None:
    story, _ = full()
    choose(story, "planner", "night")
    slow, quick = (story.submit(limit=limit, queue="night") for limit in (9000, 1200))
    a, b = (story.submit(limit=limit, priority=1) for limit in (9000, 1200))
    assert line(story) == [a, b, quick, slow]
    choose(story, "sjf")
    choose(story, "fifo", "night")
    assert line(story)[2:] == [slow, quick]
    choose(story, "", "night")  # as all others
    assert story.state.policy("night") is POLICIES["sjf"]


def test_from_one_moment_to_the_next_nobody_passes_the_first_however_many_kinds_wait() -> None:
    story = Afar(gpus=2)
    choose(story, "skip")
    runs = story.submit()
    story.plan()
    wide = story.submit(gpus(2))
    others = [story.submit(limit=600 + n) for n in range(20)]
    choose(story, "fifo")
    assert story.plan() == []
    story.exited(runs)
    assert story.plan() == [wide]
    choose(story, "skip")
    story.exited(wide)
    assert story.plan() == others[:2]


def test_nothing_that_runs_is_touched_by_a_choice() -> None:
    story = Afar(gpus=2)
    jobs = [training(story) for _ in range(2)]
    listens(story, *jobs)
    waiting = training(story)
    for name in (*POLICIES, "auto", ""):
        choose(story, name)
        story.plan()
        assert all(progress(story, job).stop is None for job in jobs)
        assert story.ready() == [waiting]


def test_one_who_was_asked_to_stop_may_go_on_when_nobody_makes_room_any_more() -> None:
    story = Afar(gpus=1)
    planner(story)
    long = training(story, training=Training(epochs=1000))
    listens(story, long)
    counted(story, long, 1, seconds=60.0)
    story.wait(700)
    short = story.submit(limit=1200)
    story.plan()
    stop = progress(story, long).stop
    assert stop is not None
    assert stop.by == short
    choose(story, "backfill")
    story.plan()
    assert progress(story, long).stop is None


def test_auto_is_backfill_until_a_job_reports_epochs() -> None:
    story = Afar(gpus=1)
    choose(story, "auto")
    first = training(story)
    story.run(first)
    long, short = story.submit(limit=9000), story.submit(limit=1200)
    elsewhere = story.submit(limit=900, queue="other")
    assert story.state.policy("default").name == "backfill"
    assert line(story) == [long, short, elsewhere]
    story.about(e.TrainingBegan, first)
    assert story.state.policy("default").name == "planner"
    assert story.state.policy("other").name == "backfill"
    assert line(story).index(short) < line(story).index(long)


def test_a_strict_queue_stays_strict() -> None:
    story = Afar(gpus=2)
    story.tell(e.QueueDefined(at=story.now, name="strict", strict=True))
    story.run(story.submit(limit=900))
    for name in (*POLICIES, "auto"):
        choose(story, name)
        wide = story.submit(gpus(2), limit=20, queue="strict", priority=5)
        narrow = story.submit(limit=10, queue="strict")
        assert story.plan() == [], name
        for job in (wide, narrow):
            story.fact(e.JobCancelled, job)


def test_without_a_choice_a_queue_goes_by_backfill() -> None:
    story = Afar(gpus=1)
    first = training(story)
    listens(story, first)
    counted(story, first, 1, seconds=60.0)
    assert story.state.policy("default") is POLICIES["backfill"]


def test_a_name_that_this_version_does_not_know_is_backfill() -> None:
    story, _ = full()
    choose(story, "of the future")
    assert story.state.policy("default") is POLICIES["backfill"]


# -- why ------------------------------------------------------------------------------------


def test_why_says_where_a_job_stands_by_what_and_who_is_before_it() -> None:
    story, _ = full(4)
    planner(story)
    urgent = story.submit(priority=5)
    known = story.submit(limit=1200)
    wide = story.submit(gpus(2), limit=4 * 3600)
    unknown = story.submit(gpus(4))
    found = told(story, wide)
    assert found.standing is not None
    assert (found.standing.position, found.standing.of) == (4, 4)
    assert found.standing.policy == "planner"
    assert found.standing.by == "priority, then remaining GPU-seconds"
    assert found.standing.figure.text == "4 h × 2 GPUs = 8 GPU-hours left, from its time limit"
    assert [(each.label, each.why) for each in found.before] == [
        (str(urgent), "priority 5, not 0"),
        (str(known), "20 min on 1 GPU left, from its time limit"),
        (str(unknown), "not measured yet: counted as 10 min × 4 GPUs = 40 GPU-minutes"),
    ]


def test_why_says_the_real_time_limit_of_a_job_that_counts_as_longer() -> None:
    story, _ = full()
    planner(story)
    found = told(story, story.submit(limit=120)).standing
    assert found is not None
    assert found.figure.text == "2 min on 1 GPU left, from its time limit: counted as 10 min"
    assert found.figure.seconds == 120.0


def test_whoever_came_first_is_before_it_for_that_alone() -> None:
    story, _ = full()
    first, second = story.submit(), story.submit()
    found = told(story, second)
    assert [(each.label, each.why) for each in found.before] == [(str(first), "came first")]
    story.fact(e.JobMoved, second, priority=0, rank=0)
    assert told(story, first).before[0].why == "was moved ahead of it"


def test_a_measured_job_says_so_and_so_do_its_like() -> None:
    story = Afar(gpus=1)
    planner(story)
    first = training(story)
    listens(story, first)
    counted(story, first, 5, seconds=360.0)
    alike = training(story)
    found = told(story, alike)
    assert found.standing is not None
    assert found.standing.figure.text == "60 min on 1 GPU left, from measurements of similar jobs"
    assert found.unblocks[0] == f"job {first} ends in about 30 min"


def test_what_would_let_it_start_is_an_end_a_quantum_or_patience() -> None:
    story = Afar(gpus=1)
    planner(story)
    long = training(story, training=Training(epochs=1000))
    listens(story, long)
    counted(story, long, 1, seconds=60.0)
    story.now += 240
    short = story.submit(limit=1200)
    assert told(story, short).unblocks == (
        f"job {long} ends in about 17 h",
        f"job {long} can be preempted in 6 min, after its quantum",
    ), "that it is overdue in 7 days does not matter"
    story.now += 8 * 24 * HOUR
    assert told(story, short).unblocks[-1] == ("it is overdue: no job may start ahead of it")


def test_a_limit_that_is_reached_is_what_has_to_change() -> None:
    story = Afar(gpus=2)
    story.tell(e.QueueDefined(at=story.now, name="one", max_running=1))
    story.run(story.submit(queue="one"))
    second = story.submit(queue="one")
    assert told(story, second).unblocks == (
        "a job that counts towards the limit must end: queue one may run 1 at a time",
    )


def test_where_nobodys_end_would_do_alone_all_are_told_who_have_to_end() -> None:
    story = Afar(gpus=2)
    endless, short = story.submit(gpus(1)), story.submit(gpus(1), limit=60)
    story.run(endless, short)
    both, one = story.submit(gpus(2)), story.submit(gpus(1))
    assert told(story, both).unblocks == (
        f"jobs {short} and {endless} end: no estimate, because job {endless} has no time limit",
    )
    assert told(story, one).unblocks == (f"job {short} ends in at most 60 s",)


def test_what_those_before_it_will_take_does_not_let_it_start() -> None:
    story = Afar(gpus=2)
    soon, later = story.submit(gpus(1), limit=60), story.submit(gpus(1), limit=600)
    story.run(soon, later)
    first, second, third = (story.submit(gpus(1)) for _ in range(3))
    assert told(story, first).unblocks[0] == f"job {soon} ends in at most 60 s"
    assert told(story, second).unblocks == (f"jobs {soon} and {later} end in at most 10 min",)
    assert told(story, third).unblocks == (
        f"the jobs ahead of it must start first: jobs {first} and {second}",
    )


def test_in_strict_order_the_first_has_to_start() -> None:
    story = Afar(gpus=2)
    choose(story, "fifo")
    story.run(story.submit(gpus(1), limit=60))
    wide, narrow = story.submit(gpus(2)), story.submit(gpus(1))
    assert told(story, narrow).unblocks == (
        f"job {wide} starts first: this queue does not backfill",
    )


def test_nobody_knows_when_a_job_without_a_limit_ends() -> None:
    story, first = full()
    second = story.submit()
    assert told(story, second).unblocks == (
        f"job {first} ends: no estimate, because job {first} has no time limit",
    )


def test_a_running_job_says_for_whom_it_might_make_room_and_who_asked_it_to() -> None:
    story = Afar(gpus=1)
    planner(story)
    long = training(story, training=Training(epochs=1000))
    listens(story, long)
    counted(story, long, 1, seconds=60.0)
    assert told(story, long).room == ()
    short = story.submit(limit=1200)
    why_so = f"it may be preempted for job {short} (20 min on 1 GPU left, from its time limit)"
    assert told(story, long).room == (f"{why_so}, not within the next 10 min",)
    story.wait(700)
    story.plan()
    story.now += 5
    assert told(story, long).room == (
        f"it was asked to stop 5 s ago: job {short} needs its resources; it is requeued",
    )
    assert told(story, short).coming == (
        f"job {long} stops for this job at the end of its epoch, any moment",
    )


def test_one_that_cannot_stop_says_so_where_others_would() -> None:
    story, first = full()
    story.submit()
    assert told(story, first).room == ()
    planner(story)
    assert "cannot be preempted" in told(story, first).room[0]


@pytest.mark.parametrize("name", [*POLICIES, "auto"])
def test_why_has_an_answer_under_every_policy(name: str) -> None:
    story = Afar(gpus=2)
    choose(story, name)
    first = training(story)
    listens(story, first)
    counted(story, first, 3, seconds=100.0)
    wide, narrow = training(story, gpus(2)), story.submit(limit=1200, user="bob")
    story.plan()
    for job in (first, wide, narrow):
        assert told(story, job).text
    waits = told(story, wide)
    assert waits.standing is not None
    assert waits.unblocks


def test_one_that_has_only_just_begun_does_not_say_that_it_can_never_stop() -> None:
    story = Afar(gpus=1)
    planner(story)
    begins = training(story)
    story.run(begins)
    story.submit(gpus(1))
    assert told(story, begins).room == (
        "it has not reported yet that it can be preempted and resumed",
    )
