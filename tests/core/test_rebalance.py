"""Elastic jobs under a policy that preempts equals: redistributed in rounds, a minute apart."""

from typing import Any

from core.scenario import Afar, gpus
from core.test_training import counted, listens, progress
from stoker.core import events as e
from stoker.core.elastic.rebalance import REBALANCE_SECONDS
from stoker.core.model.resources import ResourceRequest
from stoker.core.model.spec import Training
from stoker.core.planner.cycle import plan_events
from stoker.core.state.timers import next_wakeup


def lab(nodes: int = 2, gpus_per_node: int = 4) -> Afar:
    """Return a cluster with the planner policy."""
    story = Afar(gpus=gpus_per_node)
    for name in ["bee", "cat", "dog"][: nodes - 1]:
        story.add(name, gpus=gpus_per_node)
    story.tell(e.PolicyChosen(at=story.now, queue="*", name="planner"))
    return story


def elastic(story: Afar, max_gpus: int = 8, distributed: bool = True, **more: Any) -> int:
    """Submit an elastic job with its own profile."""
    fields = {"training": Training(epochs=100, distributed=distributed), **more}
    return story.submit(
        gpus(1, max_amount=max_gpus * 1000), **{"name": f"job {story.now}", **fields}
    )


def held_gpus(story: Afar, job: int) -> int:
    return sum(len(part.names("gpu")) for part in story.placed(job).parts)


def resize_target(story: Afar, job: int) -> int | None:
    """Return the GPUs with which it will resume, if it was asked to stop."""
    stop = progress(story, job).stop
    return stop.resize_to if stop is not None else None


def restart(story: Afar, *jobs: int) -> None:
    """Let jobs stop at their checkpoint, and start them again."""
    for job in jobs:
        story.exited(job, 75, stopped=True)
    listens(story, *jobs)


def plan_after(story: Afar, seconds: float = REBALANCE_SECONDS) -> list[int]:
    """Return the jobs that are stopped or started after some time."""
    story.now += seconds
    return story.plan()


def test_unmeasured_job_stays_on_one_node() -> None:
    story = lab()
    a = elastic(story)
    listens(story, a)
    assert held_gpus(story, a) == 4
    assert plan_after(story) == []


def test_job_grows_to_several_nodes_when_that_pays() -> None:
    story = lab()
    a = elastic(story)
    listens(story, a)
    counted(story, a, 1, seconds=1000.0)
    assert plan_after(story) == [a]
    assert resize_target(story, a) == 8
    restart(story, a)
    assert (held_gpus(story, a), sorted(story.where(a))) == (8, ["bee", "box"])
    assert progress(story, a).preemptions == 0


def test_only_distributed_job_grows_beyond_one_node() -> None:
    story = lab()
    a = elastic(story, distributed=False)
    listens(story, a)
    counted(story, a, 1, seconds=1000.0)
    assert plan_after(story) == []
    assert held_gpus(story, a) == 4


def test_change_must_repay_its_restart() -> None:
    story = lab()
    a = elastic(story)
    listens(story, a)
    counted(story, a, 1, seconds=2.0)  # over in three minutes
    assert plan_after(story) == []


def job_on_two_nodes(story: Afar) -> int:
    """Return a job that has grown to two nodes and was measured there."""
    a = elastic(story)
    listens(story, a)
    counted(story, a, 1, seconds=1000.0)
    plan_after(story)
    restart(story, a)
    counted(story, a, 2, seconds=600.0)
    return a


def test_job_shrinks_for_a_new_elastic_job() -> None:
    story = lab()
    a = job_on_two_nodes(story)
    plan_after(story)
    b = elastic(story, name="b")
    assert plan_after(story) == [a]
    assert resize_target(story, a) == 4
    restart(story, a)
    assert (held_gpus(story, a), held_gpus(story, b)) == (4, 4)
    assert set(story.where(a)).isdisjoint(story.where(b))


def test_job_shrinks_for_a_rigid_job_as_little_as_possible() -> None:
    story = lab()
    a = job_on_two_nodes(story)
    plan_after(story)
    b = story.submit(gpus(1), name="b", training=Training(epochs=10))
    assert plan_after(story) == [a]
    assert resize_target(story, a) == 4
    story.exited(a, 75, stopped=True)
    assert sorted(story.plan()) == [a, b]


def test_job_keeps_its_size_for_a_minute() -> None:
    story = lab()
    a = job_on_two_nodes(story)  # it has just been restarted
    b = elastic(story, name="b")
    assert plan_after(story, REBALANCE_SECONDS - 1) == []
    due = next_wakeup(story.state, story.now, story.boot)
    assert due is not None
    assert due <= 1
    story.now += 1
    decided = next(plan_events(story.state, story.now, story.boot))
    assert isinstance(decided, e.PreemptionRequested)
    assert decided.job == a
    assert b in story.ready()


def test_single_job_grows_at_its_first_checkpoint() -> None:
    story = lab(nodes=1)
    fixed = story.submit(gpus(3), name="fixed")
    story.run(fixed)
    a = elastic(story, max_gpus=4)
    listens(story, a)
    assert held_gpus(story, a) == 1
    story.exited(fixed)
    assert plan_after(story, 5) == []  # no epoch is measured yet
    for done, size in ((1, 2), (2, 4)):
        story.now += 5
        counted(story, a, done, seconds=1000.0 / size)
        assert story.plan() == [a]
        assert resize_target(story, a) == size
        restart(story, a)
        assert held_gpus(story, a) == size
    assert story.now - story.job(a).submitted_at < REBALANCE_SECONDS


def test_single_job_shrinks_in_rounds_only() -> None:
    story = lab()
    a = elastic(story)
    listens(story, a)
    counted(story, a, 4, seconds=1000.0)
    assert story.plan() == [a]
    restart(story, a)
    counted(story, a, 5, seconds=2000.0)  # two nodes are slower
    assert story.plan() == []
    assert plan_after(story) == [a]
    assert resize_target(story, a) == 4


def test_one_of_two_jobs_waits_for_the_round() -> None:
    story = lab(nodes=1)
    fixed = story.submit(gpus(2), name="fixed")
    story.run(fixed)
    a, b = elastic(story, max_gpus=4, name="a"), elastic(story, max_gpus=4, name="b")
    listens(story, a, b)
    story.exited(fixed)
    story.now += 5
    for job in (a, b):
        counted(story, job, 1, seconds=1000.0)
    assert story.plan() == []
    assert sorted(plan_after(story)) == [a, b]


def test_new_job_gets_free_gpus_between_rounds() -> None:
    story = lab(nodes=3)
    a = elastic(story)
    listens(story, a)
    story.now += 1
    b = elastic(story, name="b")
    assert story.plan() == [b]
    assert held_gpus(story, b) == 4


def test_job_without_free_gpus_to_grow_continues() -> None:
    story = lab()
    fixed = story.submit(ResourceRequest(gpus=gpus(1).gpus, nodes=("bee",)), name="fixed")
    a = elastic(story)
    story.run(fixed)
    listens(story, a)
    counted(story, a, 1, seconds=1000.0)
    assert plan_after(story) == []
    assert held_gpus(story, a) == 4


def test_job_that_does_not_accept_stops_keeps_its_size() -> None:
    story = lab()
    a = elastic(story, requeueable=True)
    story.run(a)
    b = elastic(story, name="b")
    c = elastic(story, name="c")
    plan_after(story)
    assert {held_gpus(story, b), held_gpus(story, c)} <= {1, 2, 4}
    assert plan_after(story, 10 * REBALANCE_SECONDS) == []


def test_longest_job_waits_when_jobs_outnumber_gpus() -> None:
    story = lab(nodes=1, gpus_per_node=2)
    a, b = elastic(story, name="a"), elastic(story, name="b")
    listens(story, a, b)
    counted(story, a, 1, seconds=1000.0)
    counted(story, b, 1, seconds=100.0)
    c = elastic(story, name="c")
    assert plan_after(story) == [a]
    assert resize_target(story, a) is None
    story.exited(a, 75, stopped=True)
    assert story.plan() == [c]
    assert progress(story, a).preemptions == 1


def test_speedup_of_an_earlier_stage_does_not_prevent_growth_later() -> None:
    story = lab()
    a = elastic(story)
    listens(story, a)
    counted(story, a, 4, seconds=1000.0)
    plan_after(story)
    restart(story, a)
    counted(story, a, 5, seconds=1100.0)  # two nodes are slower
    assert plan_after(story) == [a]
    restart(story, a)
    assert held_gpus(story, a) == 4
    plan_after(story)
    counted(story, a, 60, seconds=900.0)  # much later in its training
    assert plan_after(story) == [a]
    assert resize_target(story, a) == 8


def test_few_epoch_times_of_a_job_are_kept() -> None:
    story = lab()
    a = elastic(story)
    listens(story, a)
    for done in range(1, 100):
        counted(story, a, done, seconds=10.0 + done)
    kept = progress(story, a).epoch_times
    assert len(kept) <= 7
    assert kept[-1][1:] == (4, 109.0)


def test_next_rebalance_is_never_due_again_at_once() -> None:
    for fraction in (0.1, 0.3, 0.7, 1e-7):
        story = lab()
        story.now += fraction
        a = elastic(story)
        listens(story, a)
        story.now = (story.job(a).started_at or 0.0) + REBALANCE_SECONDS
        list(plan_events(story.state, story.now, story.boot))
        assert story.state.memory.next_rebalance > story.now
