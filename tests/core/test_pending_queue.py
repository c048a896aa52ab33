"""Who goes first; limits of queues and arrays."""

from hypothesis import given
from hypothesis import strategies as st

from core.scenario import Scenario, gpus
from stoker.core import events as e
from stoker.core.model.job import RANK_STEP
from stoker.core.model.resources import DeviceFacts, NodeFacts
from stoker.core.placement.infeasible import infeasibility_reason
from stoker.core.queue.pending_queue import first_jobs


def one_by_one(story: Scenario) -> list[int]:
    """The order in which a single GPU serves the line."""
    served = []
    while begun := story.plan():
        for job in begun:
            story.exited(job)
        served += begun
    return served


def test_the_order_of_submission_is_kept_within_the_same_second():
    story = Scenario(gpus=1)
    jobs = [story.submit(gpus(amount)) for amount in (1, 0.9, 1, 0.8, 1)]
    assert one_by_one(story) == jobs


def test_priority_goes_first_then_submission():
    story = Scenario(gpus=1)
    low, a, high, b = (story.submit(priority=priority) for priority in (-1, 0, 5, 0))
    assert one_by_one(story) == [high, a, b, low]


@given(st.lists(st.tuples(st.integers(-2, 2), st.sampled_from([1, 0.6, 0.7])), max_size=15))
def test_on_one_gpu_the_order_is_priority_then_submission(asked: list[tuple[int, float]]):
    story = Scenario(gpus=1)
    jobs = [story.submit(gpus(amount), priority=priority) for priority, amount in asked]
    expected = sorted(jobs, key=lambda job: (-story.job(job).priority, job))
    assert [job.id for job in first_jobs(story.state.pending, story.state.jobs, 99)] == expected
    assert one_by_one(story) == expected


def test_a_moved_job_takes_its_new_place():
    story = Scenario(gpus=1)
    a, b, c = (story.submit() for _ in range(3))
    story.fact(e.JobMoved, c, priority=0, rank=a * RANK_STEP - 1)
    story.fact(e.JobMoved, b, priority=1, rank=b * RANK_STEP)
    assert one_by_one(story) == [b, c, a]


def test_a_job_moved_to_and_fro_is_served_once():
    story = Scenario(gpus=1)
    a, b = story.submit(), story.submit()
    for rank in (5, 7, 5):
        story.fact(e.JobMoved, b, priority=0, rank=rank)
    assert [job.id for job in first_jobs(story.state.pending, story.state.jobs, 99)] == [b, a]
    assert one_by_one(story) == [b, a]


def test_a_retried_job_has_its_old_place():
    story = Scenario(gpus=1)
    a, b = story.submit(), story.submit()
    story.run(a)
    story.exited(a, 75)
    story.wait(5)
    assert one_by_one(story) == [a, b]


def test_equal_jobs_are_one_class():
    story = Scenario(gpus=1)
    story.submit(count=500)
    assert len(story.state.pending.classes) == 1
    assert len(story.state.pending) == 500


def test_the_plan_goes_on_until_nothing_more_fits():
    story = Scenario(gpus=2)
    story.submit(gpus(0.25), count=10)
    assert len(story.plan()) == 8


def test_a_queue_runs_no_more_than_it_may():
    story = Scenario(gpus=4)
    story.tell(e.QueueDefined(at=0, name="narrow", max_running=1))
    a, b = story.submit(queue="narrow"), story.submit(queue="narrow")
    other = story.submit()
    assert story.plan() == [a, other]
    story.exited(a)
    assert story.plan() == [b]


def test_a_queue_takes_no_more_gpus_than_it_may():
    story = Scenario(gpus=4)
    story.tell(e.QueueDefined(at=0, name="narrow", max_gpus=1500))
    a, big, half = (story.submit(gpus(n), queue="narrow") for n in (1, 2, 0.5))
    assert story.plan() == [a, half]
    assert story.is_(big) == "PENDING"


def test_two_queues_over_the_same_devices_never_over_commit_them():
    story = Scenario(gpus=2)
    story.tell(e.QueueDefined(at=0, name="a", max_gpus=2000))
    story.tell(e.QueueDefined(at=0, name="b", max_gpus=2000))
    story.submit(queue="a", count=5)
    story.submit(queue="b", count=5)
    assert len(story.plan()) == 2


def test_a_queue_stays_on_its_devices():
    story = Scenario(gpus=3)
    story.tell(e.QueueDefined(at=0, name="one", devices=("2",)))
    a, b = story.submit(queue="one"), story.submit(queue="one")
    assert story.plan() == [a]
    assert (story.on(a), story.is_(b)) == (["2"], "PENDING")


def test_a_changed_queue_applies_to_pending_jobs():
    story = Scenario(gpus=3)
    a = story.submit(queue="one")
    story.tell(e.QueueDefined(at=0, name="one", max_running=0))
    assert story.plan() == []
    story.tell(e.QueueDeleted(at=0, name="one"))
    assert story.plan() == [a]


def test_in_a_strict_queue_no_job_overtakes():
    story = Scenario(gpus=2)
    story.tell(e.QueueDefined(at=0, name="strict", strict=True))
    a, big, small = (story.submit(gpus(n), queue="strict", limit=60) for n in (1, 2, 1))
    other = story.submit(limit=5)
    assert story.plan() == [a, other]
    story.exited(other)
    assert story.plan() == []
    story.exited(a)
    assert story.plan() == [big]
    assert story.is_(small) == "PENDING"


def test_in_a_strict_queue_no_job_overtakes_one_blocked_by_a_reservation():
    story = Scenario(gpus=2)
    story.tell(e.QueueDefined(at=0, name="strict", strict=True))
    running = story.submit(gpus(1), limit=600)
    head = story.submit(gpus(2), limit=600)
    long = story.submit(gpus(1), queue="strict")
    short = story.submit(gpus(0.5), queue="strict", limit=10)
    assert story.plan() == [running]
    assert {story.is_(job) for job in (head, long, short)} == {"PENDING"}


def test_an_array_runs_no_more_members_than_it_may():
    story = Scenario(gpus=4)
    first = story.submit(count=5, array=True, array_limit=2)
    other = story.submit()
    assert story.plan() == [first, first + 1, other]
    story.exited(first)
    assert story.plan() == [first + 2]
    assert story.state.quotas.array_running == {first: 2}


def test_a_job_that_names_a_gpu_by_its_uuid_keeps_to_it_and_to_its_queue():
    cards = tuple(DeviceFacts(name=str(n), index=n, uuid=f"GPU-{n}{n}{n}{n}") for n in range(3))
    story = Scenario()
    story.tell(e.NodeJoined(at=0, facts=NodeFacts(name="box", types={"gpu": cards})))
    story.tell(e.QueueDefined(at=0, name="two", devices=("1", "2")))
    job = story.submit(gpus(1, required=("GPU-0000", "GPU-2222")), queue="two")
    never = story.submit(gpus(1, required=("0",)), queue="two")
    assert story.plan() == [job]
    assert story.on(job) == ["2"]
    asked = story.state.effective_request(story.job(never), story.state.spec(story.job(never)))
    lack = infeasibility_reason(story.state.cluster.nodes["box"], asked)
    assert lack == "has 0 GPUs among those named, not 1"
