"""Preemption: no possible preemptor is skipped, and which jobs become victims."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from core.scenario import Scenario, gpus, node
from stoker.core import events as e
from stoker.core.model.job import JobState
from stoker.core.model.profile import EpochTime
from stoker.core.model.resources import GpuRequest, ResourceRequest
from stoker.core.model.spec import Training
from stoker.core.planner.cycle import run_cycle
from stoker.core.preemption import preemptor, victim_selection
from stoker.core.queue.scan import jobs_in_order

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
    gpus(1),
    gpus(1),
    gpus(2),
    gpus(4),
    gpus(8),
    gpus(0.5),
    gpus(0.25),
    gpus(1.5),
    ResourceRequest(gpus=GpuRequest(1000), node_count=2),
    ResourceRequest(gpus=GpuRequest(2000), node_count=3),
    ResourceRequest(gpus=GpuRequest(4000), node_count=2),
    ResourceRequest(gpus=GpuRequest(2000), cpus=4000),
    ResourceRequest(gpus=GpuRequest(1000), memory=20_000),
    ResourceRequest(cpus=6000),
    ResourceRequest(exclusive=True),
    gpus(1, required=("0", "1")),
]


random_workloads = settings(
    deadline=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


@contextmanager
def without_search_limits() -> Iterator[None]:
    """Try every preemptor on every node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preemptor, "MAX_PREEMPTORS_PER_PASS", 10_000)
        patch.setattr(victim_selection, "MAX_NODES_PER_PREEMPTOR", 10_000)
        yield


class PreemptionScenario(Scenario):
    """Several nodes; cycles run until no planning is requested."""

    def __init__(self, *sizes: int, policy: str = "srsf", **parameters: float) -> None:
        super().__init__(gpus=sizes[0])
        for number, size in enumerate(sizes[1:]):
            name = f"m{number}"
            self.tell(e.NodeAdded(at=self.now, name=name, address=f"ssh://{name}"))
            self.tell(e.NodeJoined(at=self.now, facts=node(size, name=name)))
            self.tell(e.NodeReached(at=self.now, node=name))
        self.tell(e.PolicyChosen(at=self.now, queue="*", name=policy, parameters=parameters))

    def run_cycles(self) -> list[int]:
        """Run cycles until no planning is requested; return the victims."""
        victims = []
        for _ in range(20):
            for event in run_cycle(self.state, self.now, self.boot):
                self.tell(event)
                if isinstance(event, e.PreemptionRequested):
                    victims.append(event.job)
            if not self.state.pending.planning_requested:
                return victims
        raise AssertionError("planning is requested again and again")

    def submit_training(
        self, seconds: int, request: ResourceRequest | None = None, **more: Any
    ) -> int:
        """Submit a training job with this declared run time."""
        return self.submit(request, **{"training": Training(expected=seconds), **more})

    def start_preemptible(
        self, seconds: int, request: ResourceRequest | None = None, **more: Any
    ) -> int:
        """Start a job that accepts stop requests."""
        job = self.start_unresponsive(seconds, request, **more)
        self.about(e.TrainingBegan, job)
        return job

    def start_unresponsive(
        self, seconds: int, request: ResourceRequest | None = None, **more: Any
    ) -> int:
        """Start a job that accepts no stop requests."""
        job = self.submit_training(seconds, request, **more)
        self.run_cycles()
        self.started(job)
        return job

    def preempted(self, *jobs: int) -> None:
        for job in jobs:
            self.exited(job, 75, stopped=True)


class RandomWorkload(PreemptionScenario):
    """Random nodes, jobs and faults."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        sizes = [self.random.choice([1, 2, 4, 8]) for _ in range(self.random.randint(1, 5))]
        policy, parameters = self.random.choice(POLICIES)
        super().__init__(*sizes, policy=policy, **parameters)
        for _ in range(12):  # all nodes are busy, and some jobs are pending
            self.submit_random()
        self.run_cycles()
        self.start()
        for id in list(self.state.running):
            if self.random.random() < 0.8:
                self.accept_stops(id)

    def sample(self, *states: JobState) -> list[int]:
        jobs = [job.id for job in self.state.jobs.values() if job.state in states]
        return self.random.sample(jobs, min(len(jobs), self.random.randint(1, 3)))

    def step(self) -> None:
        """Apply a random event."""
        random = self.random
        getattr(self, random.choice(STEPS))()

    def submit_random(self) -> None:
        random = self.random
        if len(self.state.pending) > 14:
            return
        training = random.choice(
            [None, Training(epochs=10), Training(expected=random.choice([60, 900, 9000, 90_000]))]
        )
        request = random.choice(REQUESTS)
        self.submit(
            request, priority=random.choice([0, 0, 0, 0, 1, 2]), training=training,
            name=random.choice("ab"), user=random.choice(["ada", "bob"]),
            requeueable=random.random() < 0.2,
            limit=random.choice([None, None, None, 7200]),
        )  # fmt: skip

    def start(self) -> None:
        for id in [id for id, job in self.state.jobs.items() if job.state is JobState.CONFIGURING]:
            self.started(id)

    def begin_training(self) -> None:
        self.start()
        for id in self.sample(JobState.RUNNING):
            self.accept_stops(id)

    def accept_stops(self, id: int) -> None:
        self.about(e.TrainingBegan, id)

    def count_epochs(self) -> None:
        for id in self.sample(JobState.RUNNING):
            progress = self.job(id).progress
            done = progress.epochs + 1 if progress is not None else 1
            seconds = self.random.choice([10.0, 100.0, 1000.0])
            self.about(e.EpochsCounted, id, done=done, seconds=seconds, warmup=1.0)

    def stop(self) -> None:
        for id in list(self.state.stopping):
            if self.random.random() < 0.8:
                self.exited(id, 75, stopped=self.job(id).state is not JobState.COMPLETING)

    def end(self) -> None:
        for id in self.sample(JobState.RUNNING, JobState.COMPLETING)[:1]:
            self.exited(id, 0)

    def cancel(self) -> None:
        for id in self.sample(JobState.PENDING, JobState.RUNNING)[:1]:
            self.fact(e.JobCancelled, id)

    def pause(self) -> None:
        for id in self.sample(JobState.RUNNING)[:1]:
            self.fact(e.JobPaused, id, boot=self.boot)

    def resume(self) -> None:
        for id in self.sample(JobState.SUSPENDED):
            self.fact(e.JobResumed, id, boot=self.boot)

    def hold(self) -> None:
        for id in self.sample(JobState.PENDING)[:1]:
            self.fact(e.JobReleased if self.job(id).held else e.JobHeld, id)

    def drain(self) -> None:
        name = self.random.choice(list(self.state.cluster.nodes))
        if self.state.record.drained:
            keys = [key.partition("/") for key in self.state.record.drained]
            devices = tuple((name, *key.split(":")) for name, _, key in keys)
            self.tell(e.DevicesUndrained(at=self.now, devices=devices))
        else:
            self.tell(e.DevicesDrained(at=self.now, devices=((name, "gpu", "0"),), reason="broken"))

    def pass_time(self) -> None:
        self.now += self.random.choice([1.0, 30.0, 400.0, 4000.0])


STEPS = (
    ["submit_random"] * 6 + ["start"] + ["begin_training"] * 4 + ["count_epochs", "end", "cancel"]
    + ["stop"] * 3 + ["pause", "resume", "resume", "hold", "drain"] + ["pass_time"] * 3
)  # fmt: skip


def test_plans_leave_no_reference_cycles_for_the_garbage_collector() -> None:
    workload = RandomWorkload(1)
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            workload.step()
            workload.run_cycles()
        assert gc.collect() == 0
    finally:
        gc.enable()


# -- examples --------------------------------------------------------------------------------


def gang(gpus: int, nodes: int) -> ResourceRequest:
    return ResourceRequest(gpus=GpuRequest(1000 * gpus), node_count=nodes)


def test_gang_preempts_beside_a_node_that_becomes_free() -> None:
    scenario = PreemptionScenario(1, 1)
    first, second = scenario.start_unresponsive(9000), scenario.start_preemptible(9000)
    scenario.submit_training(10, gang(1, 2))
    assert scenario.run_cycles() == []
    scenario.exited(first)
    assert scenario.run_cycles() == [second]


def test_gang_preempts_on_unchanged_nodes_beside_a_changed_one() -> None:
    scenario = PreemptionScenario(1, 1)
    first, second = scenario.start_unresponsive(9000), scenario.start_preemptible(9000)
    scenario.submit_training(10, gang(1, 2))
    assert scenario.run_cycles() == []
    scenario.about(e.TrainingBegan, first)
    assert sorted(scenario.run_cycles()) == [first, second]


def test_job_blocked_by_a_reservation_preempts_when_that_is_gone() -> None:
    scenario = PreemptionScenario(2, policy="planner", patience=1000.0, overdue=0.0, fair=0.0)
    scenario.start_unresponsive(90_000, limit=90_000)
    low = scenario.start_preemptible(90_000, limit=90_000)
    wide = scenario.submit_training(90_000, gpus(2))
    scenario.now += 1001
    scenario.run_cycles()
    scenario.submit_training(10)
    assert scenario.run_cycles() == []  # the reservation of the overdue job for both GPUs blocks it
    scenario.fact(e.JobCancelled, wide)
    assert scenario.run_cycles() == [low]


def test_job_preempts_elsewhere_when_its_surplus_is_taken() -> None:
    scenario = PreemptionScenario(2, 1, 1)
    wide, other = scenario.start_preemptible(90_000, gpus(2)), scenario.start_preemptible(50)
    scenario.start_unresponsive(80_000, requeueable=True)  # victim of higher priorities only
    scenario.submit_training(30, priority=1)
    assert scenario.run_cycles() == [wide]  # its rank is lower than that of the other
    scenario.submit_training(20)
    scenario.submit_training(60)
    assert scenario.run_cycles() == []  # the first counts on the surplus, the second has no victim
    scenario.submit_training(10, priority=1)
    assert scenario.run_cycles() == [other]


def test_gang_is_a_victim_once_for_a_gang_on_the_same_nodes() -> None:
    scenario = PreemptionScenario(2, 2)
    jobs = [
        scenario.start_preemptible(90_000, gang(1, 2)),
        scenario.start_preemptible(9000),
        scenario.start_preemptible(9000),
    ]
    scenario.submit_training(10, gang(2, 2))
    assert sorted(scenario.run_cycles()) == jobs


def test_requeueable_job_is_a_victim_as_soon_as_it_has_started() -> None:
    scenario = PreemptionScenario(1)
    low = scenario.submit(requeueable=True)
    scenario.run_cycles()
    scenario.submit(priority=5)
    assert scenario.run_cycles() == []  # it has yet to start
    scenario.started(low)
    assert scenario.run_cycles() == [low]


def test_of_equal_nodes_the_victim_of_lowest_rank_stops() -> None:
    for first, second in ((9000, 90_000), (90_000, 9000)):
        scenario = PreemptionScenario(1, 1)
        jobs = {seconds: scenario.start_preemptible(seconds) for seconds in (first, second)}
        scenario.submit_training(10)
        assert scenario.run_cycles() == [jobs[90_000]]


def test_nodes_are_compared_by_the_last_victim_that_cores_need_too() -> None:
    """Given a node that frees its GPU by the lowest rank, but its cores by two victims only."""
    scenario = PreemptionScenario(2, 1)
    for seconds, cores in ((90_000, 1000), (9000, 6000)):
        scenario.start_preemptible(
            seconds, ResourceRequest(gpus=GpuRequest(1000), cpus=cores, nodes=("box",))
        )
    other = scenario.start_preemptible(
        50_000, ResourceRequest(gpus=GpuRequest(1000), cpus=7000, nodes=("m0",))
    )
    scenario.submit_training(10, ResourceRequest(gpus=GpuRequest(1000), cpus=4000))
    assert scenario.run_cycles() == [other]


@pytest.mark.parametrize("held", [ResourceRequest(cpus=7000), ResourceRequest(memory=30_000)])
def test_no_victim_where_cores_or_memory_stay_allocated(held: ResourceRequest) -> None:
    scenario = PreemptionScenario(1, 1)
    victim_on_box = scenario.start_preemptible(
        90_000, ResourceRequest(gpus=GpuRequest(1000), nodes=("box",))
    )
    other = scenario.start_preemptible(9000, ResourceRequest(gpus=GpuRequest(1000), nodes=("m0",)))
    scenario.start_unresponsive(
        90_000, ResourceRequest(cpus=held.cpus, memory=held.memory, nodes=("box",))
    )
    scenario.submit_training(10, ResourceRequest(gpus=GpuRequest(1000), cpus=4000, memory=8000))
    assert scenario.run_cycles() == [other]
    assert victim_on_box not in scenario.state.stopping


def test_fractions_of_two_gpus_are_not_combined() -> None:
    scenario = PreemptionScenario(2)
    halves = [scenario.start_preemptible(90_000, gpus(0.5, required=(card,))) for card in "01"]
    for card in "01":
        scenario.start_unresponsive(90_000, gpus(0.5, required=(card,)))
    scenario.submit_training(10, gpus(0.75))
    assert scenario.run_cycles() == []
    scenario.submit_training(10, gpus(0.5))
    (victim,) = scenario.run_cycles()
    assert victim in halves


def test_overdue_job_preempts_though_no_node_changed() -> None:
    scenario = PreemptionScenario(1, policy="srsf", patience=1000.0, overdue=0.0)
    low = scenario.start_preemptible(90_000)
    late = scenario.submit_training(900_000)
    assert scenario.run_cycles() == []
    scenario.now += 1001
    assert scenario.run_cycles() == [low]
    scenario.preempted(low)
    scenario.run_cycles()
    assert scenario.is_(late) == "CONFIGURING"


def test_jobs_that_share_their_gpus_by_memory_are_victims_for_whole_gpus() -> None:
    scenario = PreemptionScenario(2)
    jobs = [scenario.start_preemptible(90_000, gpus(1, shareable=True), name=name) for name in "ab"]
    for job in jobs:
        scenario.about(e.MemoryMeasured, job, memory=5000)
        scenario.about(e.EpochsCounted, job, done=1, seconds=100.0, warmup=1.0)
    assert set(scenario.free().values()) == {999}
    scenario.submit_training(10, gpus(2))
    assert sorted(scenario.run_cycles()) == jobs


@pytest.mark.parametrize("is_known_before", [False, True])
def test_job_that_started_by_a_guess_is_preempted_by_any_shorter_one(is_known_before: bool) -> None:
    scenario = PreemptionScenario(1, policy="planner")
    first = scenario.start_preemptible(0, training=Training(epochs=100), name="first")
    scenario.about(e.EpochsCounted, first, done=1, seconds=1000.0)
    if is_known_before:
        scenario.tell(
            e.ProfileImported(
                at=scenario.now, profile="ada: second", epoch_times=(EpochTime(1, "cpu", 10.0),)
            )
        )
    second = scenario.submit_training(0, training=Training(epochs=100), name="second")
    assert scenario.run_cycles() == [first]
    scenario.preempted(first)
    scenario.run_cycles()
    scenario.started(second)
    scenario.about(e.TrainingBegan, second)
    scenario.about(e.EpochsCounted, second, done=1, seconds=1500.0)  # less than twice as long
    assert scenario.run_cycles() == ([] if is_known_before else [second])


# -- queue heads ----------------------------------------------------------------------


def ids(scenario: Scenario) -> list[int]:
    return [id for _, _, id in jobs_in_order(scenario.state.pending)]


def test_job_that_changed_its_class_is_yielded_once() -> None:
    """Its former class still has an entry with an equal key."""
    scenario = PreemptionScenario(1, policy="skip")
    scenario.start_unresponsive(9000)
    first, moved, last = (scenario.submit(gpus(1)) for _ in range(3))
    wide = scenario.submit(gpus(2))
    hash = scenario.job(wide).spec
    scenario.fact(e.JobEdited, moved, spec=hash, name="job", priority=0, begin_at=None)
    assert ids(scenario) == [first, moved, last, wide]


def test_job_moved_within_its_class_is_yielded_once_at_its_new_position() -> None:
    scenario = PreemptionScenario(1, policy="skip")
    scenario.start_unresponsive(9000)
    first, moved, last = (scenario.submit(gpus(1)) for _ in range(3))
    scenario.fact(e.JobMoved, moved, priority=0, rank=scenario.job(last).order + 5)
    assert ids(scenario) == [first, last, moved]
    keys = [key for key, _, id in jobs_in_order(scenario.state.pending) if id == moved]
    assert keys == [scenario.state.pending.sort_key(scenario.job(moved))]
