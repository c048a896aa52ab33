"""A state told as a story: facts in, wishes out, no clock but the one in the facts."""

from __future__ import annotations

from typing import Any

import msgspec

from simulation.invariants import difference
from simulation.state_comparison import state_as_dict
from stoker.core import events as e
from stoker.core.clock import due
from stoker.core.cluster import DeviceFacts, NodeFacts, Placement
from stoker.core.fold import apply
from stoker.core.instructions import Instruction
from stoker.core.job import Job, Spec
from stoker.core.lifecycle import JobState
from stoker.core.plan import plan
from stoker.core.policy.early import judged
from stoker.core.request import GpuAsk, Request
from stoker.core.rest import Rest
from stoker.core.restore import restore
from stoker.core.state import State
from stoker.core.sweep import Sweep


def gpus(amount: float, **more: Any) -> Request:
    return Request(gpus=GpuAsk(amount=round(amount * 1000), **more))


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
    """One state and the time of its next fact (wall clock and boot clock alike, until a reboot)."""

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

    # -- facts --------------------------------------------------------------------------

    def tell(self, event: e.Event) -> list[Instruction]:
        self.journal.append(event)
        return apply(self.state, event)

    def fact(self, kind: type[e.Event], job: int, **more: Any) -> list[Instruction]:
        """A fact about a job, now."""
        return self.tell(kind(at=self.now, job=job, **more))  # type: ignore[call-arg]

    def submit(
        self,
        request: Request | None = None,
        count: int = 1,
        array: bool = False,
        priority: int = 0,
        held: bool = False,
        begin_at: float | None = None,
        **fields: Any,
    ) -> int:
        """New jobs; the first id."""
        common = {"kind": "line", "user": "ada", "directory": "/", "shell": "sh", "name": "job"}
        asked = request if request is not None else gpus(1)
        spec = Spec(request=asked, environment="none", **{**common, **fields})
        hash = f"{spec!r}"
        self.tell(e.SpecRecorded(at=self.now, hash=hash, spec=spec))
        first = self.state.rest.next_id
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
        """A fact about a job's current attempt, if no other is named."""
        return self.fact(kind, job, **{"attempt": self.job(job).attempt, **more})

    # -- what follows -------------------------------------------------------------------

    def plan(self) -> list[int]:
        """Start whatever can start; their ids in that order."""
        begun = []
        for planned in plan(self.state, self.now, self.boot):
            self.tell(planned)
            begun.append(planned.job)
        return begun

    def run(self, *jobs: int) -> None:
        """Plan, and say that these have started."""
        self.plan()
        for job in jobs:
            self.started(job)

    def wait(self, seconds: float) -> list[e.Event]:
        """Let time pass; what it brought."""
        self.now += seconds
        facts = due(self.state, self.now, self.boot)
        for fact in facts:
            self.tell(fact)
        return facts

    # -- looking ------------------------------------------------------------------------

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
        """The GPUs a job holds."""
        return self.placed(id).names("gpu")

    def ready(self) -> list[int]:
        return sorted(self.state.line.where)

    def free(self, type: str = "gpu", node: str = "box") -> dict[str, int]:
        return {each.name: each.free for each in self.state.cluster.nodes[node].types[type]}


class Afar(Scenario):
    """A story of several machines: after every fact, memory is what rows and journal say."""

    def __init__(self, gpus: int = 2, **more: Any) -> None:
        self.rows: dict[int, bytes] = {}
        self.sweeps: dict[int, bytes] = {}
        self.rest = b"{}"
        self.replayed = State()
        super().__init__(gpus, **more)
        self.tell(e.DaemonStarted(at=self.now, term=1, boot="one", pid=1, version="", clock=1000.0))

    def tell(self, event: e.Event) -> list[Instruction]:
        wishes = super().tell(event)
        apply(self.replayed, event)
        self._write()
        jobs = [msgspec.json.decode(row, type=Job) for row in self.rows.values()]
        sweeps = [msgspec.json.decode(row, type=Sweep) for row in self.sweeps.values()]
        boards = {sweep.id for sweep in sweeps if sweep.resident}
        read = restore(
            msgspec.json.decode(self.rest, type=Rest), self.state.specs,
            [job for job in jobs if job.id in self.state.jobs], sweeps,
            [job for job in jobs if job.id not in self.state.jobs and job.array in boards],
        )  # fmt: skip
        assert difference(state_as_dict(self.state), state_as_dict(read)) == []
        assert difference(state_as_dict(self.state), state_as_dict(self.replayed)) == []
        return wishes

    def _write(self) -> None:
        """Write what changed, as the engine does."""
        state = self.state
        self.rows.update({id: msgspec.json.encode(state.jobs[id]) for id in state.touched})
        if state.rest_changed:
            self.rest = msgspec.json.encode(state.rest)
        self.sweeps.update(
            {id: msgspec.json.encode(state.sweeps[id]) for id in state.touched_sweeps}
        )
        state.touched, state.touched_sweeps, state.rest_changed = set(), set(), False

    # -- machines -----------------------------------------------------------------------

    def add(self, name: str, gpus: int = 2, **more: Any) -> None:
        """A machine over SSH is added, and reached."""
        self.tell(e.NodeAdded(at=self.now, name=name, address=f"ssh://{name}"))
        self.tell(e.NodeJoined(at=self.now, facts=node(gpus, name=name, **more)))
        self.reached(name)

    def reached(self, name: str, *ended: tuple[int, int]) -> None:
        self.tell(e.NodeReached(at=self.now, node=name, ended=ended))

    def silent(self, name: str, why: str = "it does not answer") -> None:
        self.tell(e.NodeUnreachable(at=self.now, node=name, why=why, boot=self.boot))

    def measured(self, name: str, cpus: int = 0, memory: int = 0) -> None:
        self.tell(e.NodeMeasured(at=self.now, node=name, cpus=cpus, memory=memory))

    def restart(self, rebooted: bool = False) -> None:
        """Another driver takes over, perhaps on a machine that has just booted."""
        if rebooted:
            self.booted_at = self.now - 5.0
        boot = f"booted at {self.booted_at}" if self.booted_at else "one"
        self.tell(
            e.DaemonStarted(at=self.now, term=2, boot=boot, pid=2, version="", clock=self.boot)
        )

    def part(self, kind: type[e.Event], job: int, part: int, **more: Any) -> list[Instruction]:
        """A fact about one part of a job's current attempt."""
        return self.about(kind, job, part=part, **more)

    def where(self, id: int) -> list[str]:
        """The machines that a job holds something of."""
        return [part.node for part in self.placed(id).parts]

    def all_free(self) -> bool:
        """Whether nobody holds anything anywhere."""
        return all(
            device.free == device.facts.capacity
            for each in self.state.cluster.nodes.values()
            for device in each.devices()
        )


class Swept(Afar):
    """A story of sweeps."""

    def sweep(self, **fields: Any) -> int:
        """A sweep is asked for; its number."""
        id = fields.pop("id", self.state.rest.next_id)
        common = {
            "name": "train", "user": "ada", "identity": "same", "definition": "hash",
            "method": "grid", "created_at": self.now, "metric": "loss",
        }  # fmt: skip
        self.tell(e.SweepDefined(at=self.now, sweep=Sweep(id=id, **{**common, **fields})))
        return id

    def trials(self, sweep: int, count: int, request: Request | None = None) -> list[int]:
        """More trials of it; their jobs."""
        spec = Spec(
            kind="line", user="ada", directory="/", shell="sh", name="train", environment="none",
            request=request if request is not None else gpus(1),
        )  # fmt: skip
        if "trial" not in self.state.specs:
            self.tell(e.SpecRecorded(at=self.now, hash="trial", spec=spec))
        first, issued = self.state.rest.next_id, self.state.sweeps[sweep].issued
        told = tuple((f'{{"x":{issued + n}}}', f"train {issued + n}") for n in range(count))
        self.tell(
            e.JobsSubmitted(
                at=self.now, first=first, count=count, spec="trial", sweep=sweep, trials=told
            )
        )
        return list(range(first, first + count))

    def scored(self, job: int, value: float | None, rung: int | None = None, **more: Any) -> None:
        """A figure of a trial: at a rung, or else the one it came to in the end."""
        self.about(e.TrialMeasured, job, value=value, rung=rung, final=rung is None, **more)

    def ends(self, job: int, value: float | None, code: int = 0) -> None:
        """A trial comes to its end, with this figure."""
        self.scored(job, value)
        self.exited(job, code)

    def judge(self) -> list[e.Event]:
        """What follows from the figures since the last time."""
        facts = []
        self.state.touched_sweeps.update(self.state.sweeps)  # all were written meanwhile
        for fact in judged(self.state, self.now):
            self.tell(fact)
            facts.append(fact)
        return facts

    def counts(self, sweep: int) -> dict[str, int]:
        return self.state.sweeps[sweep].counts


S = JobState
