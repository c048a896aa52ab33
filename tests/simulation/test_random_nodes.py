"""Whatever links, machines and drivers do, in whatever order, with jobs on one or several."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from msgspec import to_builtins
from msgspec.structs import replace

from simulation import client as ask
from simulation.sim_fixture import SimFixture, gpus, machine
from simulation.simulated_executor import Faults
from simulation.simulated_machine import Model
from simulation.test_random_commands import SMALL, TO_TRAIN, TRAINEES
from stoker.core.model.job import JobState
from stoker.core.model.resources import GpuRequest, ResourceRequest
from stoker.core.model.spec import EarlySignal, Retry
from stoker.core.placement.infeasible import infeasibility_reason

A, B, C = "ant", "bee", "cat"
REMOTES = [machine(2, 8, name=A), machine(1, 4, name=B), machine(0, 2, name=C)]
NAMES = st.sampled_from([A, B, C])
REQUESTS = [
    gpus(1),
    gpus(1),
    gpus(2),
    gpus(0.5),
    ResourceRequest(cpus=1000),
    ResourceRequest(cpus=6000, memory=9_000),
    ResourceRequest(nodes=(A,)),
    ResourceRequest(gpus=GpuRequest(1000), not_nodes=("box",)),
    ResourceRequest(exclusive=True),
]
TOGETHER = [
    replace(gpus(1), node_count=2),
    replace(gpus(1), node_count=3),
    ResourceRequest(cpus=1000, node_count=3),
    ResourceRequest(cpus=500, node_count=4),
    replace(gpus(1), node_count=2, not_nodes=("box",)),
    ResourceRequest(exclusive=True, node_count=2),
]
MODELS = [
    (Model(seconds=5),),
    (Model(seconds=40),),
    (Model(seconds=200),),
    (Model(seconds=20, code=3), Model(seconds=8)),
    (Model(seconds=30, code=75), Model(seconds=3)),
    (Model(seconds=15, code=77),),
    (Model(seconds=500, ignores_term=True),),
    (Model(cannot_start="no such directory"),),
    (Model(taken="held by bob"), Model(seconds=8)),
]  # fmt: skip
UNEVEN = [
    (Model(seconds=60, others=(Model(seconds=10, code=4),)), Model(seconds=10)),
    (Model(seconds=10, others=(Model(seconds=30),)),),
    (Model(seconds=60, others=(Model(seconds=5), Model(seconds=9, signal=9, memory="host"))),),
    (Model(seconds=60, others=(Model(cannot_start="no such program"),)),),
    (Model(seconds=90, ignores_term=True, others=(Model(seconds=10, code=77),)),),
    (Model(seconds=9, code=75, others=(Model(seconds=300),)), Model(seconds=5)),
]  # fmt: skip
RULES = [Retry(), Retry(2), Retry(1, ("lost",)), Retry(1, ("timeout",))]


class AnyFleet(RuleBasedStateMachine):
    """Machines come, fall silent, restart and go; the checks run after every turn."""

    jobs = Bundle("jobs")

    @initialize(seed=st.integers(0, 99), faulty=st.booleans(), names=st.sets(NAMES, min_size=1))
    def begin(self, seed: int, faulty: bool, names: set[str]) -> None:
        faults = Faults(lost=0.2, repeated=0.2, late=0.3, start_delay=2.0) if faulty else Faults()
        self.box = SimFixture(gpus=1, seed=seed, faults=faults, remotes=REMOTES)
        self.box.add(*sorted(names))

    # -- clients ------------------------------------------------------------------------

    @rule(
        target=jobs,
        request=st.sampled_from(REQUESTS),
        models=st.sampled_from(MODELS),
        count=st.sampled_from([1, 1, 4]),
        limit=st.sampled_from([None, None, 30]),
        retry=st.sampled_from(RULES),
        patience=st.sampled_from([None, 20, 60]),
        deadline=st.sampled_from([None, None, 90.0]),
    )
    def submit(self, request, models, count, limit, retry, patience, deadline):
        return multiple(*self.enter(request, models, count, limit, retry, patience, deadline))

    @rule(
        target=jobs,
        request=st.sampled_from(TOGETHER),
        models=st.sampled_from([*MODELS, *UNEVEN, *UNEVEN]),
        limit=st.sampled_from([None, None, 30]),
        retry=st.sampled_from(RULES),
        patience=st.sampled_from([None, 20, 60]),
        deadline=st.sampled_from([None, None, 90.0]),
    )
    def submit_together(self, request, models, limit, retry, patience, deadline):
        return multiple(*self.enter(request, models, 1, limit, retry, patience, deadline))

    @rule(
        target=jobs,
        request=st.sampled_from([*TO_TRAIN, *TOGETHER[:2]]),
        trainee=st.sampled_from(TRAINEES),
        priority=st.sampled_from([0, 1]),
        restartable=st.booleans(),
        patience=st.sampled_from([None, 20]),
    )
    def submit_training(self, request, trainee, priority, restartable, patience):
        job = self.box.try_train(
            request, trainee, priority=priority, restartable=restartable, retry=Retry(2),
            if_unreachable=patience,
        )  # fmt: skip
        return multiple(*([] if job is None else [job]))

    def enter(self, request, models, count, limit, retry, patience, deadline) -> list[int]:
        first = self.box.try_submit(
            request, models, count=count, limit=limit, retry=retry, if_unreachable=patience,
            warning=EarlySignal(15, 5) if limit else None,
            deadline_at=self.box.world.moment().wall + deadline if deadline else None,
        )  # fmt: skip
        return [] if first is None else [first]

    @rule(job=jobs, at_once=st.booleans())
    def cancel(self, job, at_once):
        self.box.do(ask.cancel(job, at_once))

    @rule(job=jobs, act=st.sampled_from([ask.hold, ask.release, ask.pause, ask.resume]))
    def stop_or_go(self, job, act):
        self.box.do(act(job))

    @rule(job=jobs, same=st.booleans())
    def retry(self, job, same):
        self.box.do(ask.retry(job, same))

    @rule(job=jobs, request=st.sampled_from([*REQUESTS, *TOGETHER]))
    def edit(self, job, request):
        self.box.do(ask.edit(job, **ask.request_options(request)))

    # -- machines -----------------------------------------------------------------------

    @rule(name=NAMES, user=st.sampled_from(["ada", "bob"]))
    def add(self, name, user):
        self.box.do(ask.add_node(name, user))

    @rule(name=NAMES, force=st.booleans())
    def remove(self, name, force):
        self.box.remove(name, force)

    @rule(name=NAMES, seconds=st.sampled_from([0.0, 3.0, 10.0, 70.0]))
    def cut(self, name, seconds):
        self.box.cut(name, seconds)

    @rule(
        target=jobs,
        machines=st.sampled_from([1, 2]),
        patience=st.sampled_from([None, 10, 30]),
        seconds=st.sampled_from([1.0, 20.0, 50.0]),
    )
    def cut_off_work(self, machines, patience, seconds):
        """Work afar, and its machine falls silent, perhaps for longer than its owner waits."""
        request = ResourceRequest(cpus=500, node_count=machines, not_nodes=("box",))
        jobs = self.enter(request, (Model(seconds=100),), 1, None, Retry(), patience, None)
        self.box.run(5)
        for name in [name for job in jobs for name in self.box.ran_on(job) if name != "box"][:1]:
            self.box.cut(name, seconds)
        return multiple(*jobs)

    @rule(name=NAMES, seconds=st.sampled_from([0.0, 3.0]))
    def mend(self, name, seconds):
        self.box.driver.mend(name)
        self.box.run(seconds)

    @rule(name=NAMES, keeps_records=st.booleans())
    def reboot_remote(self, name, keeps_records):
        self.box.driver.reboot_remote(name, keeps_records)

    @rule(name=NAMES, cpus=st.sampled_from([0, 1500, 9000]), memory=st.sampled_from([0, 60_000]))
    def measure(self, name, cpus, memory):
        self.box.driver.measure(name, cpus, memory)

    # -- time and the driver ------------------------------------------------------------

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

    @rule(seconds=st.sampled_from([-3600.0, 3600.0]))
    def clock_jumps(self, seconds):
        self.box.world.jump(seconds)

    # -- what always holds --------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "box"):
            self.box.check()

    def teardown(self) -> None:
        if hasattr(self, "box"):
            self.everything_ends()

    def everything_ends(self) -> None:
        """All machines are back and nobody else uses them: whatever can run has run."""
        box = self.box
        for name in (A, B, C):
            box.driver.mend(name)
            box.do(ask.add_node(name))
            box.driver.measure(name)
        box.run(10)
        for id, job in list(box.state.jobs.items()):
            if self.impossible(id):
                box.do(ask.cancel(id))
            if job.state is JobState.SUSPENDED:
                box.do(ask.resume(id))
            if job.held:
                box.do(ask.release(id))
        box.finish(20_000)
        for id, job in box.state.jobs.items():
            assert job.finished, (id, to_builtins(job), id in box.state.pending)
        assert not any(machine.processes for _, machine in box.driver.machines.values())
        assert not box.state.record.abandoned_attempts
        assert not box.state.record.unreachable

    def impossible(self, id: int) -> bool:
        """Whether a job was edited to what there is not."""
        state = self.box.state
        asked = state.effective_request(state.jobs[id], state.spec(state.jobs[id]))
        able = [
            node
            for node in state.cluster.nodes.values()
            if infeasibility_reason(node, asked) is None
        ]
        return len(able) < asked.node_count


TestAnyFleet = AnyFleet.TestCase
TestAnyFleet.settings = settings(SMALL, max_examples=40)
