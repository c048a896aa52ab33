"""The durations that each start depends on, and the latest start that time limits allow."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from msgspec import Struct

from stoker.core.explain.forecast import Kind, combined
from stoker.core.model.job import Job
from stoker.core.model.resources import Placement
from stoker.core.placement.infeasible import infeasibility_reason
from stoker.core.queue.pending_queue import first_jobs
from stoker.core.state.state import State
from stoker.simulate.replay.recorder import RunRecorder
from stoker.simulate.workload import TraceJob

CLUSTER = 0
"""The job in the causes of a start that depends on when a cluster provides a node."""
Causes = dict[Kind, int]
"""The kinds of the durations that a start depends on, each with the first such job to end."""


class StartRecorder(RunRecorder):
    """Records when each job starts and ends, and what its start depends on."""

    def __init__(self, state: State, kind_of: Callable[[int], Kind]) -> None:
        super().__init__([], 0)
        self.state, self.kind_of = state, kind_of
        self.starts: dict[int, float] = {}
        self.ends: dict[int, float] = {}
        self.placements: dict[int, Placement] = {}
        """The placement of the last attempt of each job."""
        self.causes: dict[int, Causes] = {}
        self.last_release: Causes = {}
        """What the last release of resources depended on."""
        self.released: dict[tuple[str, str, str], dict[Kind, tuple[int, int, int]]] = {}
        """By node, type and device: the largest amount and memory released, and the job."""
        self.provided_nodes: set[str] = set()
        """Nodes that a cluster provided since."""

    def attempt_started(self, id: int, job: TraceJob, at: float, placement: Placement) -> None:
        """Record the start of an attempt; the first one of a job counts."""
        self.placements[id] = placement
        if id not in self.starts:
            self.starts[id], self.causes[id] = at, self._causes(placement)

    def _causes(self, placement: Placement) -> Causes:
        """Return the last release, and all releases without which the placement would not fit."""
        causes = dict(self.last_release)
        if any(part.node in self.provided_nodes for part in placement.parts):
            causes.setdefault(Kind.SIMILAR, CLUSTER)
        for part in placement.parts:
            devices = self.state.cluster.nodes[part.node].by_name
            for take in part.allocations:
                device = devices[take.type, take.device]
                known = self.released.get((part.node, take.type, take.device), {})
                for kind, (amount, memory, first) in known.items():
                    if amount > device.unallocated or memory > device.memory_free:
                        causes.setdefault(kind, first)
        return causes

    def attempt_ended(
        self, id: int, job: TraceJob, at: float, placement: Placement | None, ended: bool,
        resized: bool = False,
    ) -> None:  # fmt: skip
        """Record the end of an attempt, and perhaps of the job."""
        if ended:
            self.job_ended(id, at)
        else:
            self._release(id, self.causes.get(id, {}))

    def job_ended(self, id: int, at: float) -> None:
        """Record the end of a job."""
        self.ends[id] = at
        self._release(id, {self.kind_of(id): id, **self.causes.get(id, {})})

    def node_joined(self, name: str) -> None:
        """Record that a cluster provided a node."""
        self.provided_nodes.add(name)
        self.last_release = {Kind.SIMILAR: CLUSTER}

    def _release(self, id: int, causes: Causes) -> None:
        self.last_release = causes
        for part in self.placements[id].parts if id in self.placements else ():
            for take in part.allocations:
                known = self.released.setdefault((part.node, take.type, take.device), {})
                for kind, job in causes.items():
                    amount, memory, first = known.get(kind, (0, 0, job))
                    known[kind] = max(amount, take.amount), max(memory, take.memory), first

    def cycle_ended(self, at: float, waiting: int) -> None:
        """Record nothing: no series is needed."""


class StartBound(Struct, frozen=True):
    """What a start depends on, and how late it can be."""

    causes: Causes
    latest_start: float | None = None
    """Set if it depends on time limits only and was simulated."""
    latest_end: float | None = None
    """The same if the job uses its whole time limit."""
    after: int | None = None
    """A job ahead of it with causes among these."""


class StartBounds:
    """Bounds of all starts, from a simulation with median durations and full time limits."""

    def __init__(self, state: State, recorder: StartRecorder, truncated: bool) -> None:
        """`truncated`: the simulation ended before its horizon."""
        self.state, self.recorder, self.truncated = state, recorder, truncated
        unfinished = sorted(recorder.placements.keys() - recorder.ends.keys())
        self.jobs_without_estimate = [
            id for id in unfinished if recorder.kind_of(id) is Kind.UNKNOWN
        ]
        """Jobs without an estimate that hold resources until the end of the simulation."""
        self.bounds: dict[int, StartBound] = {}
        ahead: list[Job] = []
        for job in first_jobs(state.pending, state.jobs, len(state.jobs)):
            self.bounds[job.id] = self._bound(job, ahead)
            ahead.append(job)

    def bound_of(self, job: Job) -> StartBound:
        """Return the bound of a start."""
        return self.bounds.get(job.id) or self._bound(job, [])

    def _bound(self, job: Job, ahead: list[Job]) -> StartBound:
        start, end = self.recorder.starts.get(job.id), self.recorder.ends.get(job.id)
        if start is None:
            return StartBound(self._blockers(job))
        causes, latest = self.recorder.causes[job.id], start
        # If other jobs end before their limits, a job that was overtaken may start first.
        for other in self._overtaken(job, ahead) if combined(causes) is Kind.LIMIT else ():
            bound = self.bounds[other.id]
            added = {self.recorder.kind_of(other.id): other.id, **bound.causes}
            if combined(added) is not Kind.LIMIT:
                return StartBound({**causes, **added}, after=other.id)
            if bound.latest_end is None:
                return StartBound(causes)
            latest = max(latest, bound.latest_end)
        return StartBound(causes, latest, None if end is None else end + latest - start)

    def _blockers(self, job: Job) -> Causes:
        """Return what keeps a job from starting; it may only be later than the simulated time."""
        places = self.recorder.placements
        blocking = [
            id
            for id in self.jobs_without_estimate
            if any(self._could_use(job, part.node) for part in places[id].parts)
        ]
        blockers = blocking or ([] if self.truncated else self.jobs_without_estimate)
        freed = self.recorder.last_release
        return {**freed, Kind.UNKNOWN: blockers[0]} if blockers else freed

    def _overtaken(self, job: Job, ahead: list[Job]) -> list[Job]:
        """Return the jobs ahead of it that start later and could use one of its nodes."""
        start = self.recorder.starts[job.id]
        nodes = [part.node for part in self.recorder.placements[job.id].parts]
        return [
            other
            for other in ahead
            if self.recorder.starts.get(other.id, inf) > start
            and any(self._could_use(other, node) for node in nodes)
        ]

    def _could_use(self, job: Job, node: str) -> bool:
        return (
            infeasibility_reason(self.state.cluster.nodes[node], self.state.spec(job).request)
            is None
        )
