"""Training jobs, whatever comes: nobody stops in vain, nobody waits for ever, nothing breaks."""

from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from core.scenario import Afar, gpus, node
from core.test_training import counted, elastic, listens, progress, sharing, training
from simulation.training_invariants import TrainingInvariants
from stoker.core import events as e
from stoker.core.events.instructions import Instruction
from stoker.core.handlers.learning import MAX_PROFILES
from stoker.core.model.job import Job, JobState
from stoker.core.model.resources import ResourceRequest
from stoker.core.model.spec import EarlySignal, Retry
from stoker.core.model.units import THOUSAND
from stoker.core.planner.planner import plan
from stoker.core.state.record import ClusterRecord
from stoker.core.state.restore import restore


def asked(story: Afar, job: int) -> bool:
    found = story.job(job).progress
    return found is not None and found.stop is not None


def queue(story: Afar, name: str, **limits: Any) -> None:
    story.tell(e.QueueDefined(at=story.now, name=name, **limits))


# -- who is asked to stop -----------------------------------------------------------------


def test_a_paused_job_is_not_asked_to_stop_again_and_again() -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    story.fact(e.JobPaused, low, boot=story.boot)
    training(story, priority=5)
    assert story.plan() == []


def test_a_job_that_is_being_cancelled_is_not_asked_to_stop() -> None:
    story = Afar(gpus=1)
    low = training(story)
    listens(story, low)
    story.fact(e.JobCancelled, low)
    training(story, priority=5)
    assert story.plan() == []


def test_nobody_stops_when_another_is_being_ended_anyway() -> None:
    story = Afar(gpus=2)
    low, ending = training(story), story.submit(gpus(1))
    listens(story, low)
    story.started(ending)
    story.fact(e.JobCancelled, ending)
    training(story, priority=5)
    assert story.plan() == []


def test_one_that_was_paused_after_it_was_asked_is_not_waited_for() -> None:
    story = Afar(gpus=2)
    a, b = training(story), training(story)
    listens(story, a, b)
    training(story, priority=5)
    (first,) = story.plan()
    story.fact(e.JobPaused, first, boot=story.boot)
    assert story.plan() == [b if first == a else a]


def test_nobody_stops_for_one_behind_the_head_of_a_strict_queue() -> None:
    story = Afar(gpus=2)
    queue(story, "strict", strict=True)
    low, other = training(story), story.submit(gpus(1))  # the second cannot stop
    listens(story, low)
    story.started(other)
    story.submit(gpus(2), priority=9, queue="strict")
    story.submit(gpus(1), priority=5, queue="strict")
    assert story.plan() == []


def test_nobody_stops_for_what_one_further_ahead_would_get() -> None:
    """The first waits for both GPUs, so that the second must not have the one that is freed."""
    story = Afar(gpus=2)
    low, other = training(story), story.submit(gpus(1))
    listens(story, low)
    story.started(other)
    story.submit(gpus(2), priority=9)
    story.submit(gpus(1), priority=5)
    assert story.plan() == []


def test_one_behind_is_helped_where_that_is_in_nobodys_way() -> None:
    story = Afar(gpus=2)
    other, low = story.submit(gpus(1, required=("0",))), training(story, gpus(1, required=("1",)))
    listens(story, low)
    story.started(other)
    story.submit(gpus(1, required=("0",)), priority=9)
    story.submit(gpus(1), priority=5)
    assert story.plan() == [low]


def test_a_machine_that_lost_gpus_under_an_elastic_job_breaks_nothing() -> None:
    story = Afar(gpus=4)
    a = training(story, elastic(least=2), name="a")
    listens(story, a)
    counted(story, a, 1, seconds=1000.0)
    story.plan()
    story.exited(a, 75, stopped=True)
    listens(story, a)
    assert len(story.on(a)) == 4
    counted(story, a, 2, seconds=600.0)
    story.tell(e.NodeJoined(at=story.now, facts=node(gpus=1)))
    training(story, gpus(1), name="b")
    story.plan()


# -- memory -------------------------------------------------------------------------------


def test_one_that_fills_its_gpu_can_start_again() -> None:
    """What it used and the margin are more than there is: all there is must do."""
    story = Afar(gpus=1)  # 24,000 MiB
    a = training(story, sharing(4000), name="a")
    listens(story, a)
    story.about(e.MemoryMeasured, a, memory=23_500)
    counted(story, a, 1, seconds=5.0)
    story.about(e.MemoryMeasured, a, memory=23_600)
    story.exited(a, 0)
    again = training(story, sharing(4000), name="a")
    assert story.plan() == [again]
    assert 23_000 < story.placed(again).allocations[0].memory <= 24_000


def test_the_victim_of_a_neighbour_that_failed_first_goes_on_alone() -> None:
    story = Afar(gpus=1)
    a, b = training(story, sharing(4000), name="a"), training(story, sharing(4000), name="b")
    listens(story, a, b)
    story.about(e.MemoryMeasured, b, memory=3000)
    story.about(e.MemoryMeasured, a, memory=22_000)
    story.exited(a, 1, memory="cuda")
    story.exited(b, 1, memory="cuda")
    assert progress(story, b).exclusive_only
    assert "ada: b" not in story.state.record.profiles  # other jobs of the profile are not affected


def test_out_of_memory_on_a_gpu_that_is_gone_is_survived_once() -> None:
    story = Afar(gpus=2)
    a, b = training(story, sharing(4000), name="a"), training(story, sharing(4000), name="b")
    listens(story, a, b)
    story.tell(e.NodeJoined(at=story.now, facts=node(gpus=1)))
    story.exited(b, 1, memory="cuda")
    assert (story.is_(b), progress(story, b).exclusive_only) == ("PENDING", True)


def test_a_whole_machine_stays_whole_when_its_memory_is_known() -> None:
    story = Afar(gpus=2)
    a = training(story, ResourceRequest(gpus=sharing(None).gpus, exclusive=True), name="a")
    listens(story, a)
    story.about(e.MemoryMeasured, a, memory=3000)
    counted(story, a, 1, seconds=5.0)
    assert story.free() == {"0": 0, "1": 0}


def test_memory_measured_on_a_gpu_that_is_gone_breaks_nothing() -> None:
    story = Afar(gpus=2)
    a, b = training(story, sharing(4000), name="a"), training(story, sharing(4000), name="b")
    listens(story, a, b)
    story.tell(e.NodeJoined(at=story.now, facts=node(gpus=1)))
    for job in (a, b):
        story.about(e.MemoryMeasured, job, memory=9000)
        counted(story, job, 1, seconds=5.0)
        story.exited(job, 0)
    assert story.free() == {"0": 1000}


def test_those_who_share_a_gpu_that_is_gone_are_left_alone_after_a_restart() -> None:
    """Rows do not say any more how much memory it had, so that nobody can say it is too little."""
    story = Afar(gpus=2)
    jobs = [training(story, sharing(4000), name=name) for name in "abcd"]
    listens(story, *jobs)
    story.tell(e.NodeJoined(at=story.now, facts=node(gpus=1)))
    rows = [msgspec.json.decode(row, type=Job) for row in story.rows.values()]
    state = restore(msgspec.json.decode(story.rest, type=ClusterRecord), story.state.specs, rows)
    assert sorted(state.preemptible) == jobs
    assert list(plan(state, story.now, story.boot)) == []


def test_a_kind_that_is_forgotten_is_forgotten_by_those_who_wait() -> None:
    """The story checks after each fact that what waits is what the rows say."""
    story = Afar(gpus=1)
    a = training(story, sharing(4000), name="a")
    listens(story, a)
    story.about(e.MemoryMeasured, a, memory=9000)
    counted(story, a, 1, seconds=5.0)
    training(story, sharing(20_000), name="a")
    story.exited(a, 0)
    story.fact(e.JobHeld, story.state.record.next_id - 1)
    blocker = story.submit(gpus(1))
    story.run(blocker)
    story.fact(e.JobReleased, blocker - 1)
    for n in range(MAX_PROFILES):
        story.state.record.profiles.setdefault(f"kind {n}", story.state.record.profiles["ada: a"])
        story.replayed.record.profiles.setdefault(
            f"kind {n}", story.state.record.profiles["ada: a"]
        )
    story.state.changes.record()
    story.exited(blocker, 1)
    for name in "bc":
        job = training(story, gpus(1), name=name, priority=9)
        listens(story, job)
        counted(story, job, 1, seconds=5.0, warmup=1.0)
        story.exited(job, 0)


# -- elastic ------------------------------------------------------------------------------


def test_an_elastic_job_grows_no_further_than_its_queue() -> None:
    story = Afar(gpus=4)
    queue(story, "two", max_gpus=2 * THOUSAND)
    a = training(story, elastic(), queue="two")
    for done, seconds, gpus_held in ((1, 1000.0, 1), (2, 520.0, 2)):
        listens(story, a)
        assert len(story.on(a)) == gpus_held
        counted(story, a, done, seconds=seconds)
        if story.plan():
            story.exited(a, 75, stopped=True)
    assert story.is_(a) == "RUNNING"
    assert not asked(story, a)


def test_a_known_kind_starts_with_no_more_than_its_queue_has_left() -> None:
    story = Afar(gpus=4)
    a = training(story, elastic(), name="a")
    for done, seconds in ((1, 1000.0), (2, 520.0), (3, 270.0)):
        listens(story, a)
        counted(story, a, done, seconds=seconds)
        if story.plan():
            story.exited(a, 75, stopped=True)
    assert len(story.on(a)) == 4
    story.exited(a, 0)
    queue(story, "two", max_gpus=2 * THOUSAND)
    b = training(story, elastic(), name="a", queue="two")
    story.plan()
    assert len(story.on(b)) == 2


# -- facts in any order -------------------------------------------------------------------


class Watched(Afar):
    """A story of which nothing goes wrong unseen."""

    def __init__(self, gpus: int) -> None:
        self.witness = TrainingInvariants()
        super().__init__(gpus)

    def tell(self, event: e.Event) -> list[Instruction]:
        self.witness.before(self.state, event)
        instructions = super().tell(event)
        self.witness.after(self.state, event)
        assert self.witness.wrong == []
        return instructions


REQUESTS = [
    gpus(1), gpus(2), sharing(4000), sharing(11_000), sharing(None), elastic(), elastic(2, 3),
    gpus(2, shareable=True, memory=3000), gpus(1, shareable=True, memory=4000, max_amount=2000),
    ResourceRequest(gpus=sharing(4000).gpus, exclusive=True),
]  # fmt: skip
KINDS = st.fixed_dictionaries(
    {
        "ask": st.sampled_from(REQUESTS),
        "priority": st.sampled_from([0, 0, 1, 5]),
        "name": st.sampled_from("ab"),
        "queue": st.sampled_from(["default", "default", "two", "strict"]),
        "requeueable": st.booleans(),
        "limit": st.sampled_from([None, None, 600]),
        "early_signal": st.sampled_from([None, None, EarlySignal(10, 60)]),
        "retry": st.just(Retry(1, ("lost",))),
    }
)
ENDS: list[dict[str, Any]] = [
    {"code": 0}, {"code": 1}, {"code": 75, "stopped": True}, {"code": 1, "memory": "cuda"},
    {"code": 75}, {"code": None, "signal": 15},
]  # fmt: skip
STEPS = st.one_of(
    st.tuples(st.just("submit"), KINDS),
    st.tuples(st.just("start"), st.integers(0, 9)),
    st.tuples(st.just("start all")),
    st.tuples(st.just("start all")),
    st.tuples(
        st.just("count"), st.integers(0, 9), st.integers(0, 6), st.sampled_from([9.0, 900.0])
    ),
    st.tuples(st.just("memory"), st.integers(0, 9), st.sampled_from([900, 9000, 13_000, 23_600])),
    st.tuples(st.just("end"), st.integers(0, 9), st.sampled_from(ENDS)),
    st.tuples(st.just("lost"), st.integers(0, 9)),
    st.tuples(st.just("owner"), st.integers(0, 9), st.sampled_from(["pause", "cancel", "retry"])),
    st.tuples(st.just("machine"), st.integers(1, 3)),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 100.0, 5000.0])),
)


def take(story: Watched, step: tuple[Any, ...]) -> None:
    """Let one thing happen, if it can happen to that job now."""
    what, jobs = step[0], sorted(story.state.jobs)
    if what == "submit":
        fields = dict(step[1])
        training(story, fields.pop("ask"), fields.pop("priority"), **fields)
    elif what == "machine":
        story.tell(e.NodeJoined(at=story.now, facts=node(gpus=step[1])))
    elif what == "wait":
        story.wait(step[1])
    elif what == "start all":
        for job in [id for id in jobs if story.job(id).state is JobState.CONFIGURING]:
            happens(story, job, "start", ())
    elif jobs:
        happens(story, jobs[step[1] % len(jobs)], what, step[2:])
    story.plan()


def happens(story: Watched, job: int, what: str, more: tuple[Any, ...]) -> None:
    state = story.job(job).state
    if what == "owner":
        owner_acts(story, job, state, more[0])
    elif what == "start":  # also once more, as when reports are read again
        story.started(job)
        story.about(e.TrainingBegan, job)
    elif what == "count":
        story.about(e.EpochsCounted, job, done=more[0], seconds=more[1], warmup=2.0)
    elif what == "memory":
        story.about(e.MemoryMeasured, job, memory=more[0])
    elif what == "end":
        stop = more[0].get("stopped") and not asked(story, job)
        if not stop:  # nobody stops who was not asked to
            story.exited(job, **more[0])
    elif what == "lost":
        story.about(e.AttemptLost, job, why="gone")


def owner_acts(story: Watched, job: int, state: JobState, act: str) -> None:
    if act == "pause" and state is JobState.RUNNING:
        story.fact(e.JobPaused, job, boot=story.boot)
    elif act == "pause" and state is JobState.SUSPENDED:
        story.fact(e.JobResumed, job, boot=story.boot)
    elif act == "cancel" and not story.job(job).finished:
        story.fact(e.JobCancelled, job)
    elif act == "retry" and story.job(job).finished:
        story.fact(e.JobRetried, job)


@settings(
    max_examples=150, deadline=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(steps=st.lists(STEPS, min_size=25, max_size=50))
def test_whatever_is_heard_of_training_jobs_nothing_goes_wrong(steps: list[Any]) -> None:
    story = Watched(gpus=3)
    queue(story, "two", max_gpus=2 * THOUSAND)
    queue(story, "strict", strict=True)
    for step in steps:
        take(story, step)
