"""Whoever is passed over since nothing has changed for it has indeed no chance."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from core.scenario import Scenario, gpus, node
from stoker.core import events as e
from stoker.core.cycle import after_requests, before_requests
from stoker.core.job import Training
from stoker.core.lifecycle import JobState
from stoker.core.policy import choose as choosing
from stoker.core.policy import preempt
from stoker.core.policy.bars import Bar
from stoker.core.policy.heads import Heads, HopefulHeads
from stoker.core.policy.later import Later, is_stopping
from stoker.core.policy.room import Room
from stoker.core.request import GpuAsk, Request

POLICIES: list[tuple[str, dict[str, float]]] = [
    ("planner", {}),
    ("planner", {"patience": 600.0, "overdue": 2.0, "fair": 0.0}),
    ("planner", {"quantum": 300.0, "hysteresis": 2.0}),
    ("srsf", {}),
    ("srsf", {"patience": 600.0, "overdue": 2.0}),
    ("tiresias", {}),
    ("skip", {}),
]
REQUESTS = [
    gpus(1), gpus(1), gpus(2), gpus(4), gpus(8), gpus(0.5), gpus(0.25), gpus(1.5),
    Request(gpus=GpuAsk(1000), machines=2), Request(gpus=GpuAsk(2000), machines=3),
    Request(gpus=GpuAsk(4000), machines=2), Request(gpus=GpuAsk(2000), cpus=4000),
    Request(gpus=GpuAsk(1000), memory=20_000), Request(cpus=6000), Request(exclusive=True),
    gpus(1, only=("0", "1")),
]  # fmt: skip


random_courses = settings(
    deadline=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


@contextmanager
def patiently() -> Iterator[None]:
    """As if there were always time enough to look at everybody, and at every machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preempt, "LOOK_AT", 10_000)
        patch.setattr(preempt, "MOST_QUESTIONS", 10_000)
        patch.setattr(preempt, "MOST_MACHINES", 10_000)
        patch.setattr(choosing, "MOST_MACHINES", 10_000)
        patch.setattr(choosing, "MOST_EACH", 10_000)
        yield


class Yard(Scenario):
    """Several machines; the core turns until nothing is stirred."""

    def __init__(self, *sizes: int, policy: str = "srsf", **parameters: float) -> None:
        super().__init__(gpus=sizes[0])
        for number, size in enumerate(sizes[1:]):
            name = f"m{number}"
            self.tell(e.NodeAdded(at=self.now, name=name, address=f"ssh://{name}"))
            self.tell(e.NodeJoined(at=self.now, facts=node(size, name=name)))
            self.tell(e.NodeReached(at=self.now, node=name))
        self.tell(e.PolicyChosen(at=self.now, queue="*", name=policy, parameters=parameters))

    def turn(self) -> list[int]:
        """Turns of the core until nothing is stirred; who was asked to stop."""
        asked = []
        for _ in range(20):
            for fact in before_requests(self.state, self.now, self.boot):
                self.tell(fact)
            for fact in after_requests(self.state, self.now, self.boot):
                self.tell(fact)
                if isinstance(fact, e.StopAsked):
                    asked.append(fact.job)
            if not self.state.line.stirred:
                return asked
        raise AssertionError("it never comes to rest")

    def overlooked(self) -> list[int]:
        """Who is asked to stop if everybody who waits is looked at once more."""
        self.state.line.stirred = True
        self.turn()
        self.state.line.all_anew = self.state.line.stirred = True
        return self.turn()

    def job_of(self, seconds: int, request: Request | None = None, **more: Any) -> int:
        """One that was said to take so long."""
        return self.submit(request, **{"training": Training(expected=seconds), **more})

    def runs(self, seconds: int, request: Request | None = None, **more: Any) -> int:
        """One that has started, and can stop."""
        job = self.deaf(seconds, request, **more)
        self.about(e.TrainingBegan, job)
        return job

    def deaf(self, seconds: int, request: Request | None = None, **more: Any) -> int:
        """One that has started, and cannot stop."""
        job = self.job_of(seconds, request, **more)
        self.turn()
        self.started(job)
        return job

    def stops(self, *jobs: int) -> None:
        for job in jobs:
            self.exited(job, 75, stopped=True)


class Course(Yard):
    """Machines, jobs and mishaps as a seed has it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        sizes = [self.random.choice([1, 2, 4, 8]) for _ in range(self.random.randint(1, 5))]
        policy, parameters = self.random.choice(POLICIES)
        super().__init__(*sizes, policy=policy, **parameters)
        for _ in range(12):  # all have something to do, and some wait
            self.come()
        self.turn()
        self.begin()
        for id in list(self.state.running):
            if self.random.random() < 0.8:
                self.listens(id)

    def some(self, *states: JobState) -> list[int]:
        found = [job.id for job in self.state.jobs.values() if job.state in states]
        return self.random.sample(found, min(len(found), self.random.randint(1, 3)))

    def step(self) -> None:
        """Let something happen."""
        random = self.random
        getattr(self, random.choice(STEPS))()

    def come(self) -> None:
        random = self.random
        if len(self.state.line) > 14:
            return
        training = random.choice(
            [None, Training(epochs=10), Training(expected=random.choice([60, 900, 9000, 90_000]))]
        )
        request = random.choice(REQUESTS)
        self.submit(
            request, priority=random.choice([0, 0, 0, 0, 1, 2]), training=training,
            name=random.choice("ab"), user=random.choice(["ada", "bob"]),
            restartable=random.random() < 0.2,
            limit=random.choice([None, None, None, 7200]),
        )  # fmt: skip

    def begin(self) -> None:
        for id in [id for id, job in self.state.jobs.items() if job.state is JobState.CONFIGURING]:
            self.started(id)

    def speak(self) -> None:
        self.begin()
        for id in self.some(JobState.RUNNING):
            self.listens(id)

    def listens(self, id: int) -> None:
        self.about(e.TrainingBegan, id)

    def count(self) -> None:
        for id in self.some(JobState.RUNNING):
            progress = self.job(id).progress
            done = progress.epochs + 1 if progress is not None else 1
            seconds = self.random.choice([10.0, 100.0, 1000.0])
            self.about(e.EpochsCounted, id, done=done, seconds=seconds, warmup=1.0)

    def stop(self) -> None:
        for id in list(self.state.leaving):
            if self.random.random() < 0.8:
                self.exited(id, 75, stopped=self.job(id).state is not JobState.COMPLETING)

    def end(self) -> None:
        for id in self.some(JobState.RUNNING, JobState.COMPLETING)[:1]:
            self.exited(id, 0)

    def cancel(self) -> None:
        for id in self.some(JobState.PENDING, JobState.RUNNING)[:1]:
            self.fact(e.JobCancelled, id)

    def pause(self) -> None:
        for id in self.some(JobState.RUNNING)[:1]:
            self.fact(e.JobPaused, id, boot=self.boot)

    def resume(self) -> None:
        for id in self.some(JobState.SUSPENDED):
            self.fact(e.JobResumed, id, boot=self.boot)

    def hold(self) -> None:
        for id in self.some(JobState.PENDING)[:1]:
            self.fact(e.JobReleased if self.job(id).held else e.JobHeld, id)

    def drain(self) -> None:
        name = self.random.choice(list(self.state.cluster.nodes))
        if self.state.rest.drained:
            keys = [key.partition("/") for key in self.state.rest.drained]
            devices = tuple((name, *key.split(":")) for name, _, key in keys)
            self.tell(e.DevicesUndrained(at=self.now, devices=devices))
        else:
            self.tell(e.DevicesDrained(at=self.now, devices=((name, "gpu", "0"),), reason="dust"))

    def pass_time(self) -> None:
        self.now += self.random.choice([1.0, 30.0, 400.0, 4000.0])


STEPS = (
    ["come"] * 6 + ["begin"] + ["speak"] * 4 + ["count", "end", "cancel"] + ["stop"] * 3
    + ["pause", "resume", "resume", "hold", "drain"] + ["pass_time"] * 3
)  # fmt: skip


@settings(random_courses, max_examples=120)
@given(seed=st.integers(0, 2**32))
def test_nobody_is_overlooked_whatever_comes(seed: int) -> None:
    """While nobody leaves: others may count on what those make room for, and ask later."""
    with patiently():
        course = Course(seed)
        for _ in range(40):
            course.step()
            course.turn()
            if not course.state.leaving and course.random.random() < 0.5:
                assert course.overlooked() == []


@settings(random_courses, max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_the_ledger_that_is_kept_is_the_one_that_comes_out_from_scratch(seed: int) -> None:
    course = Course(seed)
    for _ in range(40):
        course.step()
        course.turn()
        kept = Room(course.state)
        kept.bar(1000)
        state, promises = course.state, [placement for _, _, placement in kept.kept]
        scratch = Later(state.cluster, state.victims, state.later.bars.can_stop)
        for job in state.leaving.values():
            if job.placement is not None and is_stopping(job):
                scratch.release(job.placement)
        for placement in promises:
            scratch.take(placement)
        scratch.bars.refresh()
        assert state.later.nodes.keys() >= scratch.nodes.keys()
        for name, mine in state.later.nodes.items():
            there = scratch.node(name)
            assert there is not None
            assert mine.standing == there.standing
        for need in (250, 1000, 4000, 8000):
            rows = [row for row in state.later.bars.down(need) if row[1] in scratch.nodes]
            assert rows == list(scratch.bars.down(need))


# -- by hand --------------------------------------------------------------------------------


def on_each(gpus: int, machines: int) -> Request:
    return Request(gpus=GpuAsk(1000 * gpus), machines=machines)


def test_a_machine_that_is_free_now_counts_for_one_that_needs_others_beside_it() -> None:
    yard = Yard(1, 1)
    first, second = yard.deaf(9000), yard.runs(9000)
    yard.job_of(10, on_each(1, 2))
    assert yard.turn() == []
    yard.exited(first)
    assert yard.turn() == [second]


def test_a_machine_as_before_counts_beside_one_that_has_changed() -> None:
    yard = Yard(1, 1)
    first, second = yard.deaf(9000), yard.runs(9000)
    yard.job_of(10, on_each(1, 2))
    assert yard.turn() == []
    yard.about(e.TrainingBegan, first)
    assert sorted(yard.turn()) == [first, second]


def test_one_behind_an_overdue_job_asks_when_that_is_gone() -> None:
    yard = Yard(2, policy="planner", patience=1000.0, overdue=0.0, fair=0.0)
    yard.deaf(90_000, limit=90_000)
    low = yard.runs(90_000, limit=90_000)
    wide = yard.job_of(90_000, gpus(2))
    yard.now += 1001
    yard.turn()
    yard.job_of(10)
    assert yard.turn() == []  # it would only keep the GPU from the one that waits for both
    yard.fact(e.JobCancelled, wide)
    assert yard.turn() == [low]


def test_one_that_counts_on_room_asks_elsewhere_when_another_takes_it() -> None:
    yard = Yard(2, 1, 1)
    wide, other = yard.runs(90_000, gpus(2)), yard.runs(50)
    yard.deaf(80_000, restartable=True)  # it stops for a higher priority alone
    yard.job_of(30, priority=1)
    assert yard.turn() == [wide]  # it can wait longer than the other one
    yard.job_of(20)
    yard.job_of(60)
    assert yard.turn() == []  # one of these counts on what is left, nobody stops for the other
    yard.job_of(10, priority=1)
    assert yard.turn() == [other]


def test_one_on_several_machines_is_asked_once_for_one_that_needs_them_all() -> None:
    yard = Yard(2, 2)
    jobs = [yard.runs(90_000, on_each(1, 2)), yard.runs(9000), yard.runs(9000)]
    yard.job_of(10, on_each(2, 2))
    assert sorted(yard.turn()) == jobs


def test_one_that_may_be_begun_anew_is_asked_as_soon_as_it_has_started() -> None:
    yard = Yard(1)
    low = yard.submit(restartable=True)
    yard.turn()
    yard.submit(priority=5)
    assert yard.turn() == []  # it has yet to start
    yard.started(low)
    assert yard.turn() == [low]


def test_of_two_equal_machines_those_stop_who_can_wait_best() -> None:
    for first, second in ((9000, 90_000), (90_000, 9000)):
        yard = Yard(1, 1)
        jobs = {seconds: yard.runs(seconds) for seconds in (first, second)}
        yard.job_of(10)
        assert yard.turn() == [jobs[90_000]]


@pytest.mark.parametrize("held", [Request(cpus=7000), Request(memory=30_000)])
def test_nobody_stops_where_cores_or_memory_are_not_given_back(held: Request) -> None:
    yard = Yard(1, 1)
    there = yard.runs(90_000, Request(gpus=GpuAsk(1000), nodes=("box",)))
    other = yard.runs(9000, Request(gpus=GpuAsk(1000), nodes=("m0",)))
    yard.deaf(90_000, Request(cpus=held.cpus, memory=held.memory, nodes=("box",)))
    yard.job_of(10, Request(gpus=GpuAsk(1000), cpus=4000, memory=8000))
    assert yard.turn() == [other]
    assert there not in yard.state.leaving


def test_a_part_of_a_gpu_is_not_made_of_two_halves() -> None:
    yard = Yard(2)
    halves = [yard.runs(90_000, gpus(0.5, only=(card,))) for card in "01"]
    for card in "01":
        yard.deaf(90_000, gpus(0.5, only=(card,)))
    yard.job_of(10, gpus(0.75))
    assert yard.turn() == []
    yard.job_of(10, gpus(0.5))
    (asked,) = yard.turn()
    assert asked in halves


def test_one_that_is_overdue_is_looked_at_whatever_has_changed() -> None:
    yard = Yard(1, policy="srsf", patience=1000.0, overdue=0.0)
    low = yard.runs(90_000)
    late = yard.job_of(900_000)
    assert yard.turn() == []
    yard.now += 1001
    assert yard.turn() == [low]
    yard.stops(low)
    yard.turn()
    assert yard.is_(late) == "CONFIGURING"


def test_those_who_share_by_now_what_they_had_alone_make_room_for_one_that_needs_both() -> None:
    yard = Yard(2)
    jobs = [yard.runs(90_000, gpus(1, beside=True), name=name) for name in "ab"]
    for job in jobs:
        yard.about(e.MemoryMeasured, job, memory=5000)
        yard.about(e.EpochsCounted, job, done=1, seconds=100.0, warmup=1.0)
    assert set(yard.free().values()) == {999}
    yard.job_of(10, gpus(2))
    assert sorted(yard.turn()) == jobs


# -- one after the other ----------------------------------------------------------------------


def told(heads: Heads) -> list[int]:
    return [id for _, _, id in heads]


def test_one_that_went_over_to_another_class_stands_there_alone() -> None:
    """It leaves a place behind in the class where it was, equal to its own."""
    yard = Yard(1, policy="skip")
    yard.deaf(9000)
    first, moved, last = (yard.submit(gpus(1)) for _ in range(3))
    wide = yard.submit(gpus(2))
    hash = yard.job(wide).spec
    yard.fact(e.JobEdited, moved, spec=hash, name="job", priority=0, begin_at=None)
    assert told(Heads(yard.state.line)) == [first, moved, last, wide]


def test_one_that_was_moved_within_its_class_is_told_once_and_where_it_stands() -> None:
    yard = Yard(1, policy="skip")
    yard.deaf(9000)
    first, moved, last = (yard.submit(gpus(1)) for _ in range(3))
    yard.fact(e.JobMoved, moved, priority=0, rank=yard.job(last).order + 5)
    assert told(Heads(yard.state.line)) == [first, last, moved]
    places = [place for place, _, id in Heads(yard.state.line) if id == moved]
    assert places == [yard.state.line.seat(yard.job(moved))]


def test_a_class_that_is_to_be_looked_at_anew_meanwhile_is_told_once() -> None:
    yard = Yard(1)
    yard.deaf(9000)
    jobs = [yard.job_of(10 * n, gpus(1), priority=9 - n) for n in range(1, 4)]
    line = yard.state.line
    last = line.where[jobs[2]]
    line.looked_at(last)
    everybody: Bar = (inf, inf)
    heads = HopefulHeads(line, lambda need: everybody, lambda need: everybody)
    seen = []
    for _, _, id in heads:
        seen.append(id)
        line.renew(last)  # somebody took what was kept for it
    assert seen == jobs
