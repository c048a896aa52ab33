"""Changes of policy while jobs are pending and running, and the explanations of the order."""

from typing import Any

import pytest

from core.scenario import Afar, gpus
from core.test_training import counted, listens, progress, training
from stoker.core import events as e
from stoker.core.explain.forecast import Kind, TimeInterval
from stoker.core.explain.why import Explanation, explain_job
from stoker.core.measurement.estimator import remaining
from stoker.core.model.job import Job
from stoker.core.model.spec import Training
from stoker.core.policies.policy import POLICIES
from stoker.core.queue.pending_queue import first_jobs

HOUR = 3600.0


def choose(scenario: Afar, name: str, queue: str = "*", **parameters: float) -> None:
    scenario.tell(e.PolicyChosen(at=scenario.now, queue=queue, name=name, parameters=parameters))


def planner(scenario: Afar) -> None:
    """With figures of its own, so that they can be told beforehand."""
    week = 7 * 24 * HOUR
    figures = {"floor": 600.0, "quantum": 600.0, "hysteresis": 2.0, "patience": week}
    choose(scenario, "planner", **figures, overdue=0.0, fair=0.0)


def pending_order(scenario: Afar) -> list[int]:
    return [job.id for job in first_jobs(scenario.state.pending, scenario.state.jobs, 100)]


def explanation_of(scenario: Afar, job: int) -> Explanation:
    state, at = scenario.state, scenario.now

    def measured(other: Job) -> TimeInterval | None:
        """The end of a job whose epochs were measured, as a forecast has it."""
        left = remaining(state.record.profiles, state.cluster, other, state.spec(other), at)
        return TimeInterval(at, at + left, None, Kind.EPOCHS, "") if left is not None else None

    return explain_job(state, scenario.job(job), at, scenario.boot, measured)


def full(gpus: int = 1, **fields: Any) -> tuple[Afar, int]:
    """A machine whose GPUs one job has, and that job."""
    scenario = Afar(gpus=gpus)
    first = scenario.submit(_gpus(gpus), **fields)
    scenario.run(first)
    return scenario, first


def _gpus(count: int) -> Any:
    return gpus(count)


# -- switching ------------------------------------------------------------------------------


def test_a_change_of_policy_reorders_pending_jobs() -> None:
    scenario, _ = full()
    long, short = scenario.submit(limit=9000), scenario.submit(limit=1200)
    assert pending_order(scenario) == [long, short]
    planner(scenario)
    assert pending_order(scenario) == [short, long]
    choose(scenario, "makespan")
    assert pending_order(scenario) == [long, short]
    choose(scenario, "")
    assert pending_order(scenario) == [long, short]


def test_a_queue_may_have_its_own_policy() -> None:
    scenario, _ = full()
    choose(scenario, "planner", "night")
    slow, quick = (scenario.submit(limit=limit, queue="night") for limit in (9000, 1200))
    a, b = (scenario.submit(limit=limit, priority=1) for limit in (9000, 1200))
    assert pending_order(scenario) == [a, b, quick, slow]
    choose(scenario, "sjf")
    choose(scenario, "fifo", "night")
    assert pending_order(scenario)[2:] == [slow, quick]
    choose(scenario, "", "night")  # as all others
    assert scenario.state.policy_of("night") is POLICIES["sjf"]


def test_fifo_blocks_all_classes_behind_the_head_at_once() -> None:
    scenario = Afar(gpus=2)
    choose(scenario, "skip")
    runs = scenario.submit()
    scenario.plan()
    wide = scenario.submit(gpus(2))
    others = [scenario.submit(limit=600 + n) for n in range(20)]
    choose(scenario, "fifo")
    assert scenario.plan() == []
    scenario.exited(runs)
    assert scenario.plan() == [wide]
    choose(scenario, "skip")
    scenario.exited(wide)
    assert scenario.plan() == others[:2]


def test_running_jobs_are_unaffected_by_a_change_of_policy() -> None:
    scenario = Afar(gpus=2)
    jobs = [training(scenario) for _ in range(2)]
    listens(scenario, *jobs)
    waiting = training(scenario)
    for name in (*POLICIES, "auto", ""):
        choose(scenario, name)
        scenario.plan()
        assert all(progress(scenario, job).stop is None for job in jobs)
        assert scenario.ready() == [waiting]


def test_a_preemption_is_cancelled_when_the_new_policy_does_not_preempt() -> None:
    scenario = Afar(gpus=1)
    planner(scenario)
    long = training(scenario, training=Training(epochs=1000))
    listens(scenario, long)
    counted(scenario, long, 1, seconds=60.0)
    scenario.wait(700)
    short = scenario.submit(limit=1200)
    scenario.plan()
    stop = progress(scenario, long).stop
    assert stop is not None
    assert stop.preemptor == short
    choose(scenario, "backfill")
    scenario.plan()
    assert progress(scenario, long).stop is None


def test_auto_is_backfill_until_a_job_reports_epochs() -> None:
    scenario = Afar(gpus=1)
    choose(scenario, "auto")
    first = training(scenario)
    scenario.run(first)
    long, short = scenario.submit(limit=9000), scenario.submit(limit=1200)
    elsewhere = scenario.submit(limit=900, queue="other")
    assert scenario.state.policy_of("default").name == "backfill"
    assert pending_order(scenario) == [long, short, elsewhere]
    scenario.about(e.TrainingBegan, first)
    assert scenario.state.policy_of("default").name == "backfill"
    counted(scenario, first, 1, seconds=60.0)
    assert scenario.state.policy_of("default").name == "planner"
    assert scenario.state.policy_of("other").name == "backfill"
    assert pending_order(scenario).index(short) < pending_order(scenario).index(long)


def test_a_strict_queue_stays_strict() -> None:
    scenario = Afar(gpus=2)
    scenario.tell(e.QueueDefined(at=scenario.now, name="strict", strict=True))
    scenario.run(scenario.submit(limit=900))
    for name in (*POLICIES, "auto"):
        choose(scenario, name)
        wide = scenario.submit(gpus(2), limit=20, queue="strict", priority=5)
        narrow = scenario.submit(limit=10, queue="strict")
        assert scenario.plan() == [], name
        for job in (wide, narrow):
            scenario.fact(e.JobCancelled, job)


def test_the_default_policy_is_backfill() -> None:
    scenario = Afar(gpus=1)
    first = training(scenario)
    listens(scenario, first)
    counted(scenario, first, 1, seconds=60.0)
    assert scenario.state.policy_of("default") is POLICIES["backfill"]


def test_an_unknown_policy_name_is_backfill() -> None:
    scenario, _ = full()
    choose(scenario, "of the future")
    assert scenario.state.policy_of("default") is POLICIES["backfill"]


# -- why ------------------------------------------------------------------------------------


def test_an_explanation_has_the_position_its_basis_and_the_jobs_ahead() -> None:
    scenario, first = full(4)
    planner(scenario)
    counted(scenario, first, 1, seconds=60.0)
    urgent = scenario.submit(priority=5)
    known = scenario.submit(limit=1200)
    wide = scenario.submit(gpus(2), limit=4 * 3600)
    unknown = scenario.submit(gpus(4))
    found = explanation_of(scenario, wide)
    assert found.queue_position is not None
    assert (found.queue_position.position, found.queue_position.of) == (4, 4)
    assert found.queue_position.policy == "planner"
    assert found.queue_position.by == "priority, then remaining GPU-seconds"
    assert found.queue_position.rank.text == "4 h × 2 GPUs = 8 GPU-hours left, from its time limit"
    assert [(each.label, each.why) for each in found.ahead] == [
        (str(urgent), "priority 5, not 0"),
        (str(known), "20 min on 1 GPU left, from its time limit"),
        (str(unknown), "not measured yet: counted as 10 min × 4 GPUs = 40 GPU-minutes"),
    ]


def test_an_explanation_has_the_real_time_limit_of_a_short_job() -> None:
    scenario, _ = full()
    planner(scenario)
    found = explanation_of(scenario, scenario.submit(limit=120)).queue_position
    assert found is not None
    assert found.rank.text == "2 min on 1 GPU left, from its time limit: counted as 10 min"
    assert found.rank.seconds == 120.0


def test_an_earlier_job_of_equal_rank_is_ahead() -> None:
    scenario, _ = full()
    first, second = scenario.submit(), scenario.submit()
    found = explanation_of(scenario, second)
    assert [(each.label, each.why) for each in found.ahead] == [(str(first), "came first")]
    scenario.fact(e.JobMoved, second, priority=0, rank=0)
    assert explanation_of(scenario, first).ahead[0].why == "was moved ahead of it"


def test_an_explanation_names_the_basis_of_a_measured_job_and_of_similar_ones() -> None:
    scenario = Afar(gpus=1)
    planner(scenario)
    first = training(scenario)
    listens(scenario, first)
    counted(scenario, first, 5, seconds=360.0)
    alike = training(scenario)
    found = explanation_of(scenario, alike)
    assert found.queue_position is not None
    assert (
        found.queue_position.rank.text == "60 min on 1 GPU left, from measurements of similar jobs"
    )
    assert found.unblocks[0] == f"job {first} ends in about 30 min"


def test_a_job_is_unblocked_by_an_end_a_quantum_or_the_starvation_bound() -> None:
    scenario = Afar(gpus=1)
    planner(scenario)
    long = training(scenario, training=Training(epochs=1000))
    listens(scenario, long)
    counted(scenario, long, 1, seconds=60.0)
    scenario.now += 240
    short = scenario.submit(limit=1200)
    assert explanation_of(scenario, short).unblocks == (
        f"job {long} ends in about 17 h",
        f"job {long} can be preempted in 6 min, after its quantum",
    ), "that it is overdue in 7 days does not matter"
    scenario.now += 8 * 24 * HOUR
    assert explanation_of(scenario, short).unblocks[-1] == (
        "it is overdue: no job may start ahead of it"
    )


def test_a_reached_quota_is_what_blocks_a_job() -> None:
    scenario = Afar(gpus=2)
    scenario.tell(e.QueueDefined(at=scenario.now, name="one", max_running=1))
    scenario.run(scenario.submit(queue="one"))
    second = scenario.submit(queue="one")
    assert explanation_of(scenario, second).unblocks == (
        "a job that counts towards the limit must end: queue one may run 1 at a time",
    )


def test_if_no_single_end_suffices_all_needed_ends_are_listed() -> None:
    scenario = Afar(gpus=2)
    endless, short = scenario.submit(gpus(1)), scenario.submit(gpus(1), limit=60)
    scenario.run(endless, short)
    both, one = scenario.submit(gpus(2)), scenario.submit(gpus(1))
    assert explanation_of(scenario, both).unblocks == (
        f"jobs {short} and {endless} end: no estimate, because job {endless} has no time limit",
    )
    assert explanation_of(scenario, one).unblocks == (f"job {short} ends in at most 60 s",)


def test_capacity_for_jobs_ahead_does_not_unblock_a_job() -> None:
    scenario = Afar(gpus=2)
    soon, later = scenario.submit(gpus(1), limit=60), scenario.submit(gpus(1), limit=600)
    scenario.run(soon, later)
    first, second, third = (scenario.submit(gpus(1)) for _ in range(3))
    assert explanation_of(scenario, first).unblocks[0] == f"job {soon} ends in at most 60 s"
    assert explanation_of(scenario, second).unblocks == (
        f"jobs {soon} and {later} end in at most 10 min",
    )
    assert explanation_of(scenario, third).unblocks == (
        f"jobs {first} and {second} start first, ahead of it",
    )


def test_in_strict_order_the_head_must_start_first() -> None:
    scenario = Afar(gpus=2)
    choose(scenario, "fifo")
    scenario.run(scenario.submit(gpus(1), limit=60))
    wide, narrow = scenario.submit(gpus(2)), scenario.submit(gpus(1))
    assert explanation_of(scenario, narrow).unblocks == (
        f"job {wide} starts first: this queue does not backfill",
    )


def test_a_job_without_a_time_limit_has_no_end_estimate() -> None:
    scenario, first = full()
    second = scenario.submit()
    assert explanation_of(scenario, second).unblocks == (
        f"job {first} ends: no estimate, because job {first} has no time limit",
    )


def test_a_running_job_lists_the_jobs_that_may_preempt_it() -> None:
    scenario = Afar(gpus=1)
    planner(scenario)
    long = training(scenario, training=Training(epochs=1000))
    listens(scenario, long)
    counted(scenario, long, 1, seconds=60.0)
    assert explanation_of(scenario, long).preemption_risk == ()
    short = scenario.submit(limit=1200)
    why_so = f"it may be preempted for job {short} (20 min on 1 GPU left, from its time limit)"
    assert explanation_of(scenario, long).preemption_risk == (
        f"{why_so}, not within the next 10 min",
    )
    scenario.wait(700)
    scenario.plan()
    scenario.now += 5
    assert explanation_of(scenario, long).preemption_risk == (
        f"it was asked to stop 5 s ago: job {short} needs its resources; it is requeued",
    )
    assert explanation_of(scenario, short).pending_preemptions == (
        f"job {long} stops for this job at the end of its epoch, any moment",
    )


def test_a_non_preemptible_job_is_explained_as_such() -> None:
    scenario, first = full()
    scenario.submit()
    assert explanation_of(scenario, first).preemption_risk == ()
    planner(scenario)
    assert "cannot be preempted" in explanation_of(scenario, first).preemption_risk[0]


@pytest.mark.parametrize("name", [*POLICIES, "auto"])
def test_every_policy_has_an_explanation(name: str) -> None:
    scenario = Afar(gpus=2)
    choose(scenario, name)
    first = training(scenario)
    listens(scenario, first)
    counted(scenario, first, 3, seconds=100.0)
    wide, narrow = training(scenario, gpus(2)), scenario.submit(limit=1200, user="bob")
    scenario.plan()
    for job in (first, wide, narrow):
        assert explanation_of(scenario, job).text
    waits = explanation_of(scenario, wide)
    assert waits.queue_position is not None
    assert waits.unblocks


def test_a_job_that_has_just_started_may_become_preemptible() -> None:
    scenario = Afar(gpus=1)
    planner(scenario)
    begins = training(scenario)
    scenario.run(begins)
    scenario.submit(gpus(1))
    assert explanation_of(scenario, begins).preemption_risk == (
        "it has not reported yet that it can be preempted and resumed",
    )
