"""A cluster with a scheduler of its own, under the virtual clock."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from msgspec import to_builtins

from simulation import client as ask
from simulation.sim_fixture import SimFixture, gpus
from simulation.simulated_executor import Faults
from simulation.simulated_machine import Model, SimulatedCluster
from simulation.test_random_commands import SMALL, accepted
from simulation.training_model import TrainingModel
from stoker.core.model.job import JobState
from stoker.core.model.resources import DeviceFacts, NodeFacts, PlacementMode, ResourceRequest
from stoker.core.model.spec import Retry

LAB = NodeFacts(
    "lab",
    {
        "gpu": (DeviceFacts("*a100", capacity=8000, model="a100", memory=40_000),),
        "cpu": (DeviceFacts("*", capacity=64_000),),
        "mem": (DeviceFacts("*", capacity=500_000),),
    },
    placement=PlacementMode.DELEGATED,
    max_in_flight=3,
)
THERE = ResourceRequest(gpus=gpus(1).gpus, nodes=("lab",))


def with_lab(**options: object) -> SimFixture:
    box = SimFixture(gpus=1, remotes=[LAB], **options)  # type: ignore[arg-type]
    box.driver.add_cluster("lab")
    box.run(1)
    return box


def cluster(box: SimFixture) -> SimulatedCluster:
    machine = box.driver.machines["lab"][1]
    assert isinstance(machine, SimulatedCluster)
    return machine


def test_only_some_jobs_wait_in_the_queue_there_and_all_of_them_run():
    box = with_lab()
    first = box.submit(THERE, (Model(seconds=50),), count=9)
    box.run(1)
    assert len(cluster(box).queue) == LAB.max_in_flight
    assert [box.job(first + n).state.value for n in range(4)] == ["QUEUED"] * 3 + ["PENDING"]
    box.run(1000)
    assert [box.runs(first + n) for n in range(9)] == [[0]] * 9
    box.check_all_over()


def test_a_job_that_waits_there_outlives_the_daemon_and_keeps_its_id():
    box = with_lab()
    cluster(box).slots = 0
    job = box.submit(THERE, (Model(seconds=50),))
    box.run(30)
    before = box.job(job).external_id
    box.driver.crash()
    box.driver.reboot()
    box.run(30)
    assert (box.job(job).state, box.job(job).external_id) == (JobState.QUEUED, before)
    cluster(box).slots = 1
    box.finish(500)
    assert (box.job(job).state, box.runs(job)) == (JobState.COMPLETED, [0])


def test_a_cancelled_job_leaves_the_queue_there():
    box = with_lab()
    cluster(box).slots = 0
    job = box.submit(THERE)
    box.run(5)
    box.do(ask.cancel(job))
    box.run(5)
    assert (box.job(job).state, cluster(box).queue) == (JobState.CANCELLED, [])
    assert box.runs(job) == []


def test_a_refused_job_is_tried_again_later():
    box = with_lab()
    cluster(box).refuses = True
    job = box.submit(THERE, (Model(seconds=5),))
    box.run(5)
    assert (box.job(job).state, box.job(job).note) == (JobState.PENDING, "the partition is down")
    cluster(box).refuses = False
    box.finish(500)
    assert box.job(job).state is JobState.COMPLETED


def test_a_job_that_the_cluster_forgot_is_lost_and_its_rule_decides():
    box = with_lab()
    cluster(box).slots = 0
    job = box.submit(THERE, (Model(seconds=5),), retry=Retry(1, ("lost",)))
    box.run(5)
    cluster(box).lose_queue()
    box.run(10)
    assert box.job(job).attempt == 1
    cluster(box).slots = 1
    box.finish(500)
    assert (box.job(job).state, box.runs(job)) == (JobState.COMPLETED, [1])


class AnyQueue(RuleBasedStateMachine):
    """Jobs here and there; the cluster, its link and the daemon fail in any order."""

    jobs = Bundle("jobs")

    @initialize(seed=st.integers(0, 99), faulty=st.booleans())
    def begin(self, seed: int, faulty: bool) -> None:
        faults = Faults(lost=0.2, repeated=0.2, late=0.3, start_delay=2.0) if faulty else Faults()
        self.box = with_lab(seed=seed, faults=faults)

    @rule(
        target=jobs,
        request=st.sampled_from([THERE, THERE, gpus(1), gpus(2), ResourceRequest(cpus=30_000)]),
        seconds=st.sampled_from([5, 40, 200]),
        count=st.sampled_from([1, 1, 5]),
        limit=st.sampled_from([None, None, 30]),
        patience=st.sampled_from([None, 20]),
        deadline=st.sampled_from([None, None, 90.0]),
        priority=st.sampled_from([0, 5]),
    )
    def submit(self, request, seconds, count, limit, patience, deadline, priority):
        return accepted(
            self.box.try_submit(
                request, (Model(seconds=seconds),), count=count, limit=limit, priority=priority,
                retry=Retry(1, ("lost",)), if_unreachable=patience, restartable=True,
                deadline_at=self.box.world.moment().wall + deadline if deadline else None,
            )
        )  # fmt: skip

    @rule(target=jobs, request=st.sampled_from([THERE, gpus(1)]), priority=st.sampled_from([0, 1]))
    def train(self, request, priority):
        trainee = TrainingModel(epochs=3, seconds=15)
        return accepted(self.box.try_train(request, trainee, priority=priority, retry=Retry(2)))

    @rule(job=jobs, at_once=st.booleans())
    def cancel(self, job, at_once):
        self.box.do(ask.cancel(job, at_once))

    @rule(job=jobs, act=st.sampled_from([ask.hold, ask.release, ask.pause, ask.resume, ask.retry]))
    def change(self, job, act):
        self.box.do(act(job))

    @rule(slots=st.integers(0, 3), refuses=st.sampled_from([False, False, True]))
    def cluster_changes(self, slots, refuses):
        cluster(self.box).slots, cluster(self.box).refuses = slots, refuses

    @rule()
    def cluster_forgets(self):
        cluster(self.box).lose_queue()

    @rule(keeps_records=st.booleans())
    def cluster_restarts(self, keeps_records):
        self.box.driver.reboot_remote("lab", keeps_records)

    @rule(seconds=st.sampled_from([3.0, 10.0, 70.0]))
    def cut(self, seconds):
        self.box.cut("lab", seconds)

    @rule()
    def mend(self):
        self.box.mend("lab")

    @rule(seconds=st.sampled_from([0.0, 1.0, 7.0, 30.0, 120.0]))
    def wait(self, seconds):
        self.box.run(seconds)

    @rule(instant=st.integers(1, 25), seconds=st.sampled_from([0.0, 5.0, 30.0]))
    def crash_soon(self, instant, seconds):
        self.box.driver.fuse.passed, self.box.driver.fuse.at = 0, instant
        self.box.run(seconds)
        self.box.driver.fuse.at = None

    @rule(keeps_records=st.booleans())
    def reboot(self, keeps_records):
        self.box.driver.reboot(keeps_records)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "box"):
            self.box.check()

    def teardown(self) -> None:
        if not hasattr(self, "box"):
            return
        box = self.box
        cluster(box).slots, cluster(box).refuses = 2, False
        box.mend("lab")
        for id, job in list(box.state.jobs.items()):
            if job.state is JobState.SUSPENDED:
                box.do(ask.resume(id))
            if job.held:
                box.do(ask.release(id))
        box.finish(20_000)
        for id, job in box.state.jobs.items():
            assert job.finished, (id, to_builtins(job), id in box.state.pending)
        assert not cluster(box).queue


TestAnyQueue = AnyQueue.TestCase
TestAnyQueue.settings = settings(SMALL, max_examples=20)
