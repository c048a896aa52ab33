"""Whatever clients, crashes, reboots and lost messages do, in whatever order."""

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)
from msgspec import to_builtins

from simulation import client as ask
from simulation.invariants import unaccounted_processes
from simulation.sim_fixture import SimFixture, gpus, machine
from simulation.simulated_executor import Faults
from simulation.simulated_machine import Model
from simulation.training_model import TrainingModel
from stoker.core.model.dependency import Clause, Dependency, DependencyStatus
from stoker.core.model.job import JobState
from stoker.core.model.resources import GpuRequest, ResourceRequest
from stoker.core.model.spec import EarlySignal, Retry
from stoker.core.placement.infeasible import infeasibility_reason
from stoker.core.policies.policy import POLICIES
from stoker.core.state.eligibility import dependency_status_of
from stoker.schema.requests import Resource

REQUESTS = [
    gpus(1),
    gpus(2),
    gpus(0.1),
    gpus(0.5),
    gpus(1.5),
    gpus(3),
    gpus(1, memory=9_000),
    gpus(0.3, memory=9_000),
    gpus(1, required=("0", "1")),
    gpus(1, prefer=("2",)),
    gpus(0.5, avoid=("0",)),
    ResourceRequest(),
    ResourceRequest(cpus=4000, memory=30_000),
    ResourceRequest(gpus=GpuRequest(2000), cpus=9000),
    ResourceRequest(exclusive=True),
]
MODELS = [
    (Model(seconds=5),),
    (Model(seconds=40),),
    (Model(seconds=5, code=3),),
    (Model(seconds=5, code=75), Model(seconds=80, code=75), Model(seconds=3)),
    (Model(seconds=20, memory="cuda", code=1), Model(seconds=20)),
    (Model(seconds=30, signal=11), Model(seconds=10)),
    (Model(seconds=500, ignores_term=True),),
    (Model(cannot_start="no such directory"),),
    (Model(taken="held by bob"), Model(seconds=8)),
    (Model(seconds=0.01),),
]  # fmt: skip
TO_TRAIN = [
    gpus(1), gpus(2), gpus(1, shareable=True, memory=4000), gpus(1, shareable=True, memory=11_000),
    gpus(1, shareable=True), gpus(2, shareable=True, memory=3000), gpus(1, max_amount=3000),
    gpus(1, max_amount=2000, shareable=True, memory=4000),
]  # fmt: skip
TRAINEES = [
    TrainingModel(epochs=3, seconds=10),
    TrainingModel(epochs=2, seconds=60, warmup=1, memory=(500, 6000)),
    TrainingModel(epochs=4, seconds=8, memory=(2000, 2000, 20_000)),
    TrainingModel(epochs=2, seconds=20, memory=(23_500,), ignores=True),
    TrainingModel(epochs=3, seconds=15, dies_after=1),
]
DISKS = [
    Resource("hdd", "0", "32"), Resource("hdd", "1", "64"), Resource("gpu", "1"),
    Resource("gpu", "2"),
]  # fmt: skip
OF_A_QUEUE = [
    ResourceRequest(named=(("hdd", 20_000),)),
    ResourceRequest(named=(("hdd", 50_000),)),
    gpus(1),
    gpus(0.5),
    ResourceRequest(gpus=GpuRequest(500), named=(("hdd", 30_000),)),
    gpus(1, required=("1", "2"), fixed_share=500),
    gpus(2, required=("2", "1"), fixed_share=1000),
]
DEVICES = [f"box/gpu:{n}" for n in range(3)]
SMALL = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # shrinking replays for minutes; a seed finds the same case again
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def accepted(first):
    """The jobs of a submission, if the daemon has accepted it."""
    return multiple(*([] if first is None else [first]))


class AnyCourse(RuleBasedStateMachine):
    """Clients and mishaps in any order; the checks run after every turn."""

    jobs = Bundle("jobs")

    @initialize(seed=st.integers(0, 99), faulty=st.booleans())
    def begin(self, seed: int, faulty: bool) -> None:
        faults = Faults(lost=0.2, repeated=0.2, late=0.3, start_delay=2.0) if faulty else Faults()
        self.box = SimFixture(gpus=3, seed=seed, faults=faults)

    # -- clients ------------------------------------------------------------------------

    @rule(
        target=jobs,
        request=st.sampled_from(REQUESTS),
        models=st.sampled_from(MODELS),
        count=st.sampled_from([1, 1, 1, 3, 7]),
        array=st.sampled_from([None, None, 1, 2]),
        priority=st.sampled_from([0, 0, 0, 5, -5]),
        limit=st.sampled_from([None, None, 10, 60]),
        retry=st.sampled_from([Retry(), Retry(2), Retry(1, ("lost",)), Retry(2, ("timeout",))]),
        begin_in=st.sampled_from([None, None, None, 30.0]),
        held=st.sampled_from([False, False, False, True]),
        queue=st.sampled_from(["default", "default", "narrow", "strict"]),
        deadline=st.sampled_from([None, None, None, 45.0]),
    )
    def submit(self, request, models, count, array, priority, limit, retry, begin_in, held,
               queue, deadline):  # fmt: skip
        first = self.box.try_submit(
            request, models, count=count, array=array is not None, priority=priority, held=held,
            begin_in=begin_in, limit=limit, retry=retry, queue=queue,
            array_limit=array, warning=EarlySignal(15, 5) if limit else None,
            deadline_at=self.box.world.moment().wall + deadline if deadline else None,
        )  # fmt: skip
        return accepted(first)

    @rule(
        target=jobs,
        request=st.sampled_from(OF_A_QUEUE),
        models=st.sampled_from(MODELS),
        count=st.sampled_from([1, 4]),
        limit=st.sampled_from([None, 20]),
    )
    def submit_to_its_own_devices(self, request, models, count, limit):
        first = self.box.try_submit(request, models, count=count, limit=limit, queue="own")
        return accepted(first)

    @rule(
        target=jobs,
        request=st.sampled_from(TO_TRAIN),
        trainee=st.sampled_from(TRAINEES),
        count=st.sampled_from([1, 1, 3]),
        priority=st.sampled_from([0, 0, 1, 5]),
        name=st.sampled_from("ab"),
        restartable=st.booleans(),
        queue=st.sampled_from(["default", "default", "narrow", "strict"]),
    )
    def submit_training(self, request, trainee, count, priority, name, restartable, queue):
        job = self.box.try_train(
            request, trainee, count=count, priority=priority, name=name, queue=queue,
            restartable=restartable, retry=Retry(2),
        )  # fmt: skip
        return accepted(job)

    @rule(strict=st.booleans(), fewer=st.booleans())
    def own_queue(self, strict, fewer):
        resources = DISKS[1:] if fewer else DISKS
        self.box.do(ask.define_queue("own", strict=strict, resources=resources))

    @rule()
    def delete_own_queue(self):
        self.box.do(ask.delete_queue("own"))

    @rule(
        target=jobs,
        others=st.lists(jobs, min_size=1, max_size=2, unique=True),
        kind=st.sampled_from(["afterok", "afterany", "afternotok", "after", "aftercorr"]),
        either=st.booleans(),
        count=st.sampled_from([1, 3]),
    )
    def submit_behind(self, others, kind, either, count):
        known = tuple(id for id in others if id in self.box.state.jobs)
        if not known:
            return multiple()
        clauses = tuple(Clause(kind, (id,), 60 if kind == "after" else 0) for id in known)
        first = self.box.try_submit(
            gpus(1), dependency=Dependency(clauses, any=either), count=count, array=count > 1
        )
        return accepted(first)

    @rule(job=jobs, at_once=st.booleans())
    def cancel(self, job, at_once):
        self.box.do(ask.cancel(job, at_once))

    @rule(job=jobs, act=st.sampled_from([ask.hold, ask.release, ask.pause, ask.resume]))
    def stop_or_go(self, job, act):
        self.box.do(act(job))

    @rule(job=jobs, same=st.booleans())
    def retry(self, job, same):
        self.box.do(ask.retry(job, same))

    @rule(job=jobs, where=st.sampled_from(["first", "last", "before", "after"]), other=jobs)
    def move(self, job, where, other):
        self.box.do(ask.move(job, where, other))

    @rule(
        job=jobs,
        request=st.sampled_from([None, None, *REQUESTS]),
        limit=st.sampled_from(["0", "30s"]),
        priority=st.sampled_from([None, -3, 5]),
    )
    def edit(self, job, request, limit, priority):
        options = {"time": limit} if priority is None else {"time": limit, "priority": priority}
        if request is not None:
            options |= ask.request_options(request)
        self.box.do(ask.edit(job, **options))

    @rule(device=st.sampled_from(DEVICES), act=st.sampled_from([ask.drain, ask.undrain]))
    def drain(self, device, act):
        self.box.do(act(device))

    @rule(most=st.sampled_from([None, 1, 2]), gpus=st.sampled_from([None, "1", "2.5"]))
    def limit_queue(self, most, gpus):
        self.box.do(ask.define_queue("narrow", max_running=most, max_gpus=gpus))
        self.box.do(ask.define_queue("strict", strict=True, devices=["0", "2"]))

    @rule(
        name=st.sampled_from([*POLICIES, "planner", "planner", "auto", ""]),
        queue=st.sampled_from(["*", "*", "default", "narrow", "strict"]),
        quantum=st.sampled_from([None, 0.0, 10.0]),
        patience=st.sampled_from([None, 60.0]),
    )
    def choose_policy(self, name, queue, quantum, patience):
        given = {"quantum": quantum, "patience": patience} if name else {}
        parameters = {key: value for key, value in given.items() if value is not None}
        self.box.do(ask.choose_policy(name, queue, **parameters))

    @rule(
        queue=st.sampled_from(["default", "default", "narrow", "strict"]),
        name=st.sampled_from(["max_running", "max_gpus", "gpu_hours", "gpu_memory", None]),
        value=st.sampled_from(["0", "1", "2", "24G"]),
    )
    def set_limits(self, queue, name, value):
        is_size = value.endswith("G")
        if name is None or is_size == (name == "gpu_memory"):
            self.box.do(ask.set_limits(queue, **({name: value} if name else {})))

    @rule(
        device=st.sampled_from(["0", "1", "2"]),
        begin=st.sampled_from(["now", "now+20", "now+100"]),
        duration=st.sampled_from(["15s", "2m", "1d"]),
        queue=st.sampled_from([(), ("narrow",), ("default",)]),
    )
    def reserve(self, device, begin, duration, queue):
        self.box.do(ask.reserve([device], begin, duration, *queue))

    @rule(number=st.integers(1, 3))
    def cancel_reservation(self, number):
        self.box.do(ask.cancel_reservation(f"r{number}"))

    # -- time and mishaps ---------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 1.0, 7.0, 30.0, 120.0]))
    def wait(self, seconds):
        self.box.run(seconds)

    @rule(instant=st.integers(1, 25), seconds=st.sampled_from([0.0, 5.0, 30.0]))
    def crash_soon(self, instant, seconds):
        self.box.driver.fuse.passed, self.box.driver.fuse.at = 0, instant
        self.box.run(seconds)
        self.box.driver.fuse.at = None

    @rule(down=st.sampled_from([0.0, 20.0]))
    def crash(self, down):
        self.box.world.advance(down)
        self.box.driver.crash()

    @rule(keeps_records=st.booleans())
    def reboot(self, keeps_records):
        self.box.driver.reboot(keeps_records)

    @rule(count=st.sampled_from([1, 2, 3]))
    def rejoin(self, count):
        self.box.driver.rejoin(machine(count))

    @rule(seconds=st.sampled_from([-3600.0, -1.0, 1.0, 3600.0]))
    def clock_jumps(self, seconds):
        self.box.world.jump(seconds)

    # -- what always holds --------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "box"):
            return
        self.box.check()

    def teardown(self) -> None:
        if hasattr(self, "box"):
            self.everything_ends()

    def everything_ends(self) -> None:
        """Obstacles away, enough time: whatever can run has run."""
        box = self.box
        box.driver.rejoin(machine(3))
        box.do(ask.undrain(*DEVICES))
        for queue in ("default", "narrow", "strict"):
            box.do(ask.set_limits(queue))
        for name in list(box.state.record.reservations):
            box.do(ask.cancel_reservation(name))
        box.do(ask.define_queue("narrow", max_running=1))
        box.do(ask.define_queue("strict", strict=True))
        box.do(ask.define_queue("own", strict=True, resources=DISKS))
        for id, job in list(box.state.jobs.items()):
            if self.impossible(id):
                box.do(ask.cancel(id))
            if job.state is JobState.SUSPENDED:
                box.do(ask.resume(id))
            if job.held:
                box.do(ask.release(id))
        box.finish()
        assert not unaccounted_processes(box.driver)
        for id, job in box.state.jobs.items():
            if not job.finished:
                assert self.hopeless(id), (id, to_builtins(job), id in box.state.pending)

    def impossible(self, id: int) -> bool:
        """Whether a job was edited to what there is not."""
        job = self.box.state.jobs[id]
        asked = self.box.state.effective_request(job, self.box.state.spec(job))
        return infeasibility_reason(self.box.state.cluster.nodes["box"], asked) is not None

    def hopeless(self, id: int) -> bool:
        """Whether a job waits for what will never be, at first or at second hand."""
        job = self.box.state.jobs[id]
        how, others, _ = dependency_status_of(self.box.state, job, self.box.world.moment().wall)
        pending = [each for each in others if not self.box.state.jobs[each].finished]
        return how is DependencyStatus.NEVER or (bool(pending) and all(map(self.hopeless, pending)))


TestAnyCourse = AnyCourse.TestCase
TestAnyCourse.settings = SMALL
