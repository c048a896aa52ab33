"""Scenarios: a state, events applied to it, and the instructions that follow."""

from __future__ import annotations

from typing import Any

import msgspec

from simulation.invariants import difference
from simulation.state_comparison import state_as_dict
from stoker.core import events as e
from stoker.core.events.instructions import Instruction
from stoker.core.handlers import apply
from stoker.core.model.job import Job, JobState
from stoker.core.model.resources import (
    DeviceFacts,
    GpuRequest,
    NodeFacts,
    Placement,
    ResourceRequest,
)
from stoker.core.model.spec import Spec
from stoker.core.model.sweep import Sweep
from stoker.core.planner.early_stopping import early_stopping_events
from stoker.core.planner.planner import plan
from stoker.core.state.record import ClusterRecord
from stoker.core.state.restore import restore
from stoker.core.state.state import State
from stoker.core.state.timers import due_events


def gpus(amount: float, **more: Any) -> ResourceRequest:
    return ResourceRequest(gpus=GpuRequest(amount=round(amount * 1000), **more))


def node(gpus: int = 2, name: str = "box", cpus: int = 8, memory: int = 32_000) -> NodeFacts:
    cards = [DeviceFacts(name=str(n), index=n, memory=24_000, model="a100") for n in range(gpus)]
    return NodeFacts(
        name=name,
        types={
            "gpu": tuple(cards),
            "cpu": (DeviceFacts(name="cpu", capacity=cpus * 1000),),
            "mem": (DeviceFacts(name="mem", capacity=memory),),
        },
    )


class Scenario:
    """One state and the time of its next event; both clocks are equal until a reboot."""

    def __init__(self, gpus: int = 2, **more: Any) -> None:
        self.state = State()
        self.now = 1000.0
        self.booted_at = 0.0
        self.journal: list[e.Event] = []
        self.tell(e.NodeJoined(at=self.now, facts=node(gpus, **more)))

    @property
    def boot(self) -> float:
        """The boot clock."""
        return self.now - self.booted_at

    # -- events -------------------------------------------------------------------------

    def tell(self, event: e.Event) -> list[Instruction]:
        self.journal.append(event)
        return apply(self.state, event)

    def fact(self, kind: type[e.Event], job: int, **more: Any) -> list[Instruction]:
        """Apply an event of a job, now."""
        return self.tell(kind(at=self.now, job=job, **more))  # type: ignore[call-arg]

    def submit(
        self,
        request: ResourceRequest | None = None,
        count: int = 1,
        array: bool = False,
        priority: int = 0,
        held: bool = False,
        begin_at: float | None = None,
        **fields: Any,
    ) -> int:
        """Submit jobs and return the first id."""
        common = {"kind": "line", "user": "ada", "directory": "/", "shell": "sh", "name": "job"}
        requested = request if request is not None else gpus(1)
        spec = Spec(request=requested, environment="none", **{**common, **fields})
        hash = f"{spec!r}"
        self.tell(e.SpecRecorded(at=self.now, hash=hash, spec=spec))
        first = self.state.record.next_id
        indexes = tuple(range(count)) if array else None
        self.tell(
            e.JobsSubmitted(
                at=self.now, first=first, count=count, spec=hash, lines=("true",) * count,
                priority=priority, held=held, begin_at=begin_at, indexes=indexes,
            )
        )  # fmt: skip
        return first

    def started(self, job: int, **more: Any) -> list[Instruction]:
        attempt = self.job(job).attempt
        fields = {"attempt": attempt, "pid": 7, "boot": self.boot, **more}
        return self.fact(e.ProcessStarted, job, **fields)

    def exited(self, job: int, code: int | None = 0, **more: Any) -> list[Instruction]:
        fields = {"attempt": self.job(job).attempt, "code": code, **more}
        return self.fact(e.ProcessExited, job, **fields)

    def about(self, kind: type[e.Event], job: int, **more: Any) -> list[Instruction]:
        """Apply an event of an attempt, by default the current one."""
        return self.fact(kind, job, **{"attempt": self.job(job).attempt, **more})

    # -- what follows -------------------------------------------------------------------

    def plan(self) -> list[int]:
        """Run the planner; return the jobs of its decisions in order."""
        begun = []
        for planned in plan(self.state, self.now, self.boot):
            self.tell(planned)
            begun.append(planned.job)
        return begun

    def run(self, *jobs: int) -> None:
        """Plan, and report these jobs as started."""
        self.plan()
        for job in jobs:
            self.started(job)

    def wait(self, seconds: float) -> list[e.Event]:
        """Advance the clock; return the events that were due."""
        self.now += seconds
        events = due_events(self.state, self.now, self.boot)
        for event in events:
            self.tell(event)
        return events

    # -- queries ------------------------------------------------------------------------

    def job(self, id: int) -> Job:
        return self.state.jobs[id]

    def is_(self, id: int) -> str:
        return self.job(id).state.value

    def states(self) -> list[str]:
        return [job.state.value for _, job in sorted(self.state.jobs.items())]

    def placed(self, id: int) -> Placement:
        placement = self.job(id).placement
        assert placement is not None
        return placement

    def on(self, id: int) -> list[str]:
        """Return the GPUs of a job."""
        return self.placed(id).names("gpu")

    def ready(self) -> list[int]:
        return sorted(self.state.pending.class_of)

    def free(self, type: str = "gpu", node: str = "box") -> dict[str, int]:
        return {each.name: each.unallocated for each in self.state.cluster.nodes[node].types[type]}


class Afar(Scenario):
    """Several nodes; after every event, the state equals the restored and the replayed one."""

    def __init__(self, gpus: int = 2, **more: Any) -> None:
        self.rows: dict[int, bytes] = {}
        self.sweeps: dict[int, bytes] = {}
        self.rest = b"{}"
        self.replayed = State()
        super().__init__(gpus, **more)
        self.tell(e.DaemonStarted(at=self.now, term=1, boot="one", pid=1, version="", clock=1000.0))

    def tell(self, event: e.Event) -> list[Instruction]:
        instructions = super().tell(event)
        apply(self.replayed, event)
        self._write()
        jobs = [msgspec.json.decode(row, type=Job) for row in self.rows.values()]
        sweeps = [msgspec.json.decode(row, type=Sweep) for row in self.sweeps.values()]
        boards = {sweep.id for sweep in sweeps if sweep.resident}
        read = restore(
            msgspec.json.decode(self.rest, type=ClusterRecord), self.state.specs,
            [job for job in jobs if job.id in self.state.jobs], sweeps,
            [job for job in jobs if job.id not in self.state.jobs and job.array in boards],
        )  # fmt: skip
        assert difference(state_as_dict(self.state), state_as_dict(read)) == []
        assert difference(state_as_dict(self.state), state_as_dict(self.replayed)) == []
        return instructions

    def _write(self) -> None:
        """Write what changed, as the engine does."""
        state, changes = self.state, self.state.take_changes()
        self.rows.update({id: msgspec.json.encode(state.jobs[id]) for id in changes.jobs})
        if changes.has_record:
            self.rest = msgspec.json.encode(state.record)
        self.sweeps.update({id: msgspec.json.encode(state.sweeps[id]) for id in changes.sweeps})

    # -- nodes --------------------------------------------------------------------------

    def add(self, name: str, gpus: int = 2, **more: Any) -> None:
        """Add a node over SSH that can be reached."""
        self.tell(e.NodeAdded(at=self.now, name=name, address=f"ssh://{name}"))
        self.tell(e.NodeJoined(at=self.now, facts=node(gpus, name=name, **more)))
        self.reached(name)

    def reached(self, name: str, *ended: tuple[int, int]) -> None:
        self.tell(e.NodeReached(at=self.now, node=name, ended=ended))

    def silent(self, name: str, why: str = "it does not answer") -> None:
        self.tell(e.NodeUnreachable(at=self.now, node=name, why=why, boot=self.boot))

    def measured(self, name: str, cpus: int = 0, memory: int = 0) -> None:
        self.tell(e.NodeLoadMeasured(at=self.now, node=name, cpus=cpus, memory=memory))

    def restart(self, rebooted: bool = False) -> None:
        """Restart the daemon, perhaps after a reboot."""
        if rebooted:
            self.booted_at = self.now - 5.0
        boot = f"booted at {self.booted_at}" if self.booted_at else "one"
        self.tell(
            e.DaemonStarted(at=self.now, term=2, boot=boot, pid=2, version="", clock=self.boot)
        )

    def part(self, kind: type[e.Event], job: int, part: int, **more: Any) -> list[Instruction]:
        """Apply an event of one part of the current attempt."""
        return self.about(kind, job, part=part, **more)

    def where(self, id: int) -> list[str]:
        """Return the nodes of a job."""
        return [part.node for part in self.placed(id).parts]

    def all_free(self) -> bool:
        """Whether every device is unallocated."""
        return all(
            device.unallocated == device.facts.capacity
            for each in self.state.cluster.nodes.values()
            for device in each.devices()
        )


class Swept(Afar):
    """Sweeps and their trials."""

    def sweep(self, **fields: Any) -> int:
        """Define a sweep and return its id."""
        id = fields.pop("id", self.state.record.next_id)
        common = {
            "name": "train", "user": "ada", "identity": "same", "definition": "hash",
            "method": "grid", "created_at": self.now, "metric": "loss",
        }  # fmt: skip
        self.tell(e.SweepDefined(at=self.now, sweep=Sweep(id=id, **{**common, **fields})))
        return id

    def trials(self, sweep: int, count: int, request: ResourceRequest | None = None) -> list[int]:
        """Add trials and return their jobs."""
        spec = Spec(
            kind="line", user="ada", directory="/", shell="sh", name="train", environment="none",
            request=request if request is not None else gpus(1),
        )  # fmt: skip
        if "trial" not in self.state.specs:
            self.tell(e.SpecRecorded(at=self.now, hash="trial", spec=spec))
        first, issued = self.state.record.next_id, self.state.sweeps[sweep].issued
        trials = tuple((f'{{"x":{issued + n}}}', f"train {issued + n}") for n in range(count))
        self.tell(
            e.JobsSubmitted(
                at=self.now, first=first, count=count, spec="trial", sweep=sweep, trials=trials
            )
        )
        return list(range(first, first + count))

    def scored(self, job: int, value: float | None, rung: int | None = None, **more: Any) -> None:
        """Report the value of a trial at a rung, or its final value."""
        self.about(e.TrialMeasured, job, value=value, rung=rung, final=rung is None, **more)

    def ends(self, job: int, value: float | None, code: int = 0) -> None:
        """End a trial with this value."""
        self.scored(job, value)
        self.exited(job, code)

    def stop_early(self) -> list[e.Event]:
        """Apply the early-stopping events and return them."""
        events = []
        for sweep in self.state.sweeps:  # all were written meanwhile
            self.state.changes.sweep(sweep)
        for event in early_stopping_events(self.state, self.now):
            self.tell(event)
            events.append(event)
        return events

    def counts(self, sweep: int) -> dict[str, int]:
        return self.state.sweeps[sweep].counts


S = JobState
