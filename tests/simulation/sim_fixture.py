"""SimFixture: a simulated daemon, its clients and the checks of every test."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from simulation import client as ask
from simulation import invariants as checks
from simulation.client import ClientRequest, MakeHandler, job_options
from simulation.crash_points import VolatileStore
from simulation.simulated_daemon import SimulatedDaemon
from simulation.simulated_executor import Faults
from simulation.simulated_machine import Model
from simulation.state_comparison import ReplayedState, replayed, state_as_dict
from simulation.training_model import TrainingModel
from simulation.virtual_clock import VirtualClock
from stoker.core.events import JobRetried
from stoker.core.model.job import Job, JobState
from stoker.core.model.resources import DeviceFacts, GpuRequest, NodeFacts, ResourceRequest
from stoker.core.model.spec import Retry, Training
from stoker.core.state.node_updates import held_on
from stoker.engine import CommandRejected
from stoker.store.port import JobQuery, Store
from stoker.sweep.definition.rungs import rungs
from stoker.sweep.definition.stopping import stop_of
from stoker.sweep.validation import Field


def machine(gpus: int = 4, cpus: int = 16, memory: int = 64_000, name: str = "box") -> NodeFacts:
    cards = [DeviceFacts(name=str(n), index=n, memory=24_000, model="a100") for n in range(gpus)]
    return NodeFacts(
        name=name,
        types={
            "gpu": tuple(cards),
            "cpu": (DeviceFacts(name="cpu", capacity=cpus * 1000),),
            "mem": (DeviceFacts(name="mem", capacity=memory),),
        },
    )


def gpus(amount: float, **more: object) -> ResourceRequest:
    return ResourceRequest(gpus=GpuRequest(amount=round(amount * 1000), **more))  # type: ignore[arg-type]


class SimFixture:
    """A daemon, the models of its jobs, and the submissions that it acknowledged."""

    def __init__(
        self,
        gpus: int = 4,
        seed: int = 0,
        faults: Faults | None = None,
        open_store: Callable[[], Store] | None = None,
        check_every: int = 1,
        remotes: Sequence[NodeFacts] = (),
    ) -> None:
        self.check_every, self.turns = check_every, 0
        self.forget_checks()
        self.world = VirtualClock(seed)
        self.models: dict[int, tuple[Model, ...]] = {}
        self.memory = VolatileStore()
        self.driver = SimulatedDaemon(
            self.world, open_store or self._reopen, machine(gpus), self._behaviour, faults, remotes
        )
        self.once_removed: set[str] = set()
        self.promised: dict[str, tuple[int, int]] = {}
        self.keys = 0

    def _reopen(self) -> Store:
        self.memory = VolatileStore(self.memory.rows)
        return self.memory

    def _behaviour(self, job: int, attempt: int) -> Model:
        models = self.models.get(job, (Model(),))
        return models[min(attempt, len(models) - 1)]

    def forget_checks(self) -> None:
        """The journal is not the one that was checked before."""
        self.mirror = ReplayedState()
        self.over: dict[int, JobState] = {}
        self.read_up_to = 0

    # -- acting -------------------------------------------------------------------------

    def do(self, make_handler: MakeHandler) -> ClientRequest:
        """Send a request, and let it be answered."""
        request = self.driver.send(make_handler)
        self.driver.turn()
        return request

    def submit(
        self,
        request: ResourceRequest | None = None,
        models: tuple[Model, ...] = (Model(),),
        count: int = 1,
        array: bool = False,
        **fields: Any,
    ) -> int:
        """New jobs that behave like these models, attempt by attempt; the first id."""
        first = self.try_submit(request, models, count, array, **fields)
        assert first is not None
        return first

    def try_submit(
        self,
        request: ResourceRequest | None = None,
        models: tuple[Model, ...] = (Model(),),
        count: int = 1,
        array: bool = False,
        **fields: Any,
    ) -> int | None:
        """The same, or None if the daemon rejects them."""
        self.keys += 1
        key = f"key-{self.keys}"
        first = self.state.record.next_id
        self.models.update({first + n: models for n in range(count)})
        options = job_options(request, array=count if array else None, **fields)
        sent = self.do(ask.submit(options, key, count))
        if sent.rejection is not None:
            return None
        assert (sent.answer.first, sent.answer.count) == (first, count)
        self.promised[key] = (first, count)
        return first

    def train(
        self,
        request: ResourceRequest | None = None,
        trainee: TrainingModel | None = None,
        **more: Any,
    ) -> int:
        """A training job that behaves like this in every attempt."""
        first = self.try_train(request, trainee, **more)
        assert first is not None
        return first

    def try_train(
        self,
        request: ResourceRequest | None = None,
        trainee: TrainingModel | None = None,
        **more: Any,
    ) -> int | None:
        """The same, or None if the daemon rejects it."""
        trains = trainee or TrainingModel()
        fields = {"training": Training(epochs=trains.epochs), "name": "train", **more}
        models = fields.pop("models", (Model(trains=trains),))
        return self.try_submit(request, models, **fields)

    def sweep(
        self,
        trainees: Sequence[TrainingModel],
        request: ResourceRequest | None = None,
        retry: Retry | None = None,
        stop: dict[str, Any] | None = None,
        **fields: Any,
    ) -> int:
        """A sweep with one trial for each of these; its number."""
        self.keys += 1
        key = f"key-{self.keys}"
        id = self.state.record.next_id
        checked = stop_of(Field("the sweep", "stop", stop))
        steps = tuple(map(int, rungs(checked))) if checked is not None else ()
        for number, trainee in enumerate(trainees):
            self.models[id + 1 + number] = (Model(trains=replace(trainee, rungs=steps)),)
        options = job_options(request, training=Training(), retry=retry)
        sent = self.do(ask.sweep(options, key, len(trainees), stop=stop, **fields))
        assert sent.answer is not None, sent.rejection
        assert sent.answer.sweep == id
        if fields.get("asks"):
            self.do(ask.add_trials(id, range(len(trainees))))
        else:
            self.promised[key] = (id + 1, len(trainees))
        return id

    def trials(self, sweep: int) -> list[int]:
        return sorted(self.state.boards[sweep].trials)

    def run(self, seconds: float) -> None:
        self.driver.run(seconds, self._after_turn)

    def _after_turn(self) -> None:
        self.turns += 1
        if self.turns % self.check_every == 0:
            self.check()

    def finish(self, seconds: float = 100_000) -> None:
        self.run(seconds)

    # -- looking ------------------------------------------------------------------------

    @property
    def state(self):
        return self.driver.engine.state

    def job(self, id: int) -> Job:
        if id in self.state.jobs:
            return self.state.jobs[id]
        return self.driver.store.find_jobs(JobQuery(ids=[id]))[0].job

    def states(self) -> dict[int, str]:
        return {id: job.state.value for id, job in sorted(self.state.jobs.items())}

    def runs(self, job: int) -> list[int]:
        """The attempts of a job that really had a process."""
        return sorted(
            attempt
            for _, machine in self.driver.machines.values()
            for id, attempt in machine.started
            if id == job
        )

    def ran_on(self, job: int) -> list[str]:
        """The machines on which something of a job runs."""
        return [
            name
            for name, (_, machine) in self.driver.machines.items()
            if any(id == job for id, _ in machine.processes)
        ]

    # -- machines over SSH --------------------------------------------------------------

    def add(self, *names: str) -> None:
        """Add machines, and let them be reached."""
        for name in names:
            self.do(ask.add_node(name))
        self.run(1)

    def remove(self, name: str, force: bool = False) -> ClientRequest:
        """Remove a node, unless a start that was sent to it may still arrive there.

        What a removed node does with such an order is not modelled.
        """
        for job in self.state.running.values():
            if force and job.started_at is None and held_on([job], name):
                unsent = ClientRequest(ask.remove_node(name, force))
                unsent.reject(CommandRejected(f"job {job.id} is being started on {name}"))
                return unsent
        self.once_removed.add(name)
        return self.do(ask.remove_node(name, force))

    def cut(self, name: str, seconds: float = 10.0) -> None:
        """Break a link, and let that be noticed."""
        self.driver.cut(name)
        self.run(seconds)

    def mend(self, name: str) -> None:
        self.driver.mend(name)
        self.run(1)

    # -- what must always hold ----------------------------------------------------------

    def check(self) -> None:
        driver = self.driver
        wrong = [
            *checks.over_commitments(self.state),
            *checks.double_starts(driver),
            *checks.unaccounted_processes(driver, self.once_removed),
            *checks.idle_strays(driver),
            *checks.overfull_queues(self.state),
            *checks.wronged(driver, self.mirror),
            *checks.half_trained(self.state),
            *checks.miscounted(self.state),
            *checks.memory_differs(driver, self.mirror),
        ]
        assert not wrong, "\n".join(wrong)
        self.check_promises()
        self.check_ends_last()

    def check_ends_last(self) -> None:
        """A finished job stays as it ended, unless it was retried."""
        for seq, event in self.driver.store.events(self.read_up_to, 1 << 60):
            self.read_up_to = seq
            if isinstance(event, JobRetried):
                self.over.pop(event.job, None)
        for id, state in self.over.items():
            assert self.job(id).state is state, (id, state, self.job(id))
        self.over.update({id: self.state.jobs[id].state for id in self.state.finished})

    def check_promises(self) -> None:
        """Every acknowledged job exists once."""
        ids = [id for first, count in self.promised.values() for id in range(first, first + count)]
        assert len(set(ids)) == len(ids)
        missing = [id for id in ids if id not in self.state.jobs]
        if missing:
            found = {each.job.id for each in self.driver.store.find_jobs(JobQuery(ids=missing))}
            assert not set(missing) - found

    def check_all_over(self) -> None:
        """Nothing waits or runs any more."""
        assert state_as_dict(replayed(self.driver.store)) == state_as_dict(self.state)
        left = {id: job for id, job in self.state.jobs.items() if not job.finished}
        assert not left, {id: (job.state, job.held, job.begin_at) for id, job in left.items()}
        assert not any(machine.processes for _, machine in self.driver.machines.values())
        told = Counter(self.driver.told)
        assert all(job.state in JobState for job in self.state.jobs.values()), told
