"""Victim selection: a minimal set of running jobs whose devices let a preemptor start.

On one node, or on as many as a gang misses, victims are released in the order of the index, the
lowest rank first, until the request fits; then those that are not needed are kept running
(Kubernetes: GetVictimsOnNode; Kueue: fillBackWorkloads).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import chain, islice
from math import inf, log2

from msgspec import Struct

from stoker.core.cluster.cluster import Cluster
from stoker.core.elastic import sizes as elastic
from stoker.core.model.hardware import DeviceAllocation, Placement
from stoker.core.model.job import Job
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.placement.capacity import available_on, count_feasible_nodes, max_request_amount
from stoker.core.placement.fit import fit
from stoker.core.placement.placer import find_placement
from stoker.core.placement.request_shape import gpus_needed, non_gpu_amounts
from stoker.core.preemption.threshold_query import ThresholdQuery
from stoker.core.queue.job_class import JobClass
from stoker.core.running.future_capacity import FutureCapacity, can_preempt
from stoker.core.state.state import State

MAX_NODES_PER_PREEMPTOR = 8
"""Nodes on which victims are tried for each node that one preemptor requests."""


class Eviction(Struct, frozen=True):
    """A victim that stops: for good, or to resume with the least GPUs that it needs (`keeps`)."""

    victim: Job
    keeps: ResourceRequest | None = None


class PreemptorRequest:
    """A pending job, its request, and which running jobs may be its victims."""

    def __init__(
        self, state: State, request: ResourceRequest, job_class: JobClass, rank: float
    ) -> None:
        self.state, self.request, self.priority = state, request, job_class.priority
        self.node_part = request.part
        """The request to one node."""
        self.all_nodes = (
            job_class.is_unchecked or state.pending.recheck_all or request.node_count > 1
        )
        """Whether all nodes are tried, or only changed ones. A changed node may be enough for a
        gang together with unchanged ones."""
        policy = state.policy_of(job_class.queue)
        self.min_victim_rank = rank + log2(policy.hysteresis) if policy.preempts else inf
        """Victims of equal priority must have a rank above this."""
        self.min_free = dict(non_gpu_amounts(request))
        """The amount of each device type that a node must have at least."""
        if request.gpu_amount:
            self.min_free[GPU] = gpus_needed(request)

    def allows(self, name: str) -> bool:
        """Whether the request allows a node by its name."""
        request = self.request
        if request.nodes and name not in request.nodes:
            return False
        return name not in request.not_nodes


def select_victims(
    thresholds: ThresholdQuery, preemptor: PreemptorRequest, now: float
) -> list[Eviction]:
    """Return a minimal set of evictions, released in the future capacity; [] if none helps."""
    if preemptor.request.node_count > 1:
        return _select_for_gang(thresholds, preemptor, now)
    future = thresholds.nominations.future
    if preemptor.state.running_elastic:
        for name in _elastic_nodes(preemptor):
            if evictions := _select_on(future, name, preemptor, now, shrink_only=True):
                return evictions
    for name in _candidate_nodes(thresholds, preemptor):
        if evictions := _select_on(future, name, preemptor, now):
            return evictions
    return []


def _select_for_gang(
    thresholds: ThresholdQuery, preemptor: PreemptorRequest, now: float
) -> list[Eviction]:
    """Return evictions on as many nodes as a gang misses."""
    future, request = thresholds.nominations.future, preemptor.request
    names = list(_candidate_nodes(thresholds, preemptor))
    evictions: list[Eviction] = []
    if count_feasible_nodes(future, request) + len(names) < request.node_count:
        return []
    for name in names:
        node = future.node(name)
        if node is None or fit(node, preemptor.node_part) is not None:
            continue
        evicted = {eviction.victim.id for eviction in evictions}
        evictions += _select_on(future, name, preemptor, now, exclude=evicted)
        if count_feasible_nodes(future, request) == request.node_count:
            break
    if evictions and find_placement(future, request) is not None:
        return _drop_unneeded(future, request, evictions)
    restore_victims(future, evictions)
    return []


def _candidate_nodes(thresholds: ThresholdQuery, preemptor: PreemptorRequest) -> Iterator[str]:
    """Return the nodes on which preemption may help, the best first."""
    names: Iterable[str] = thresholds.candidate_nodes(
        preemptor.node_part,
        (-preemptor.priority, preemptor.min_victim_rank),
        preemptor.all_nodes,
    )
    if preemptor.state.running_elastic:
        names = dict.fromkeys([*_elastic_nodes(preemptor), *names])
    max_nodes = MAX_NODES_PER_PREEMPTOR * preemptor.request.node_count
    return islice(filter(preemptor.allows, names), max_nodes)


def _select_on(
    future: FutureCapacity,
    name: str,
    preemptor: PreemptorRequest,
    now: float,
    shrink_only: bool = False,
    exclude: Container[int] = (),
) -> list[Eviction]:
    """Return the evictions that a node needs, released in the future capacity; [] if none help.

    With `shrink_only`, only elastic jobs that resume with fewer GPUs are victims.
    """
    trial = _NodeTrial(future, preemptor, name)
    for eviction in _evictions_on(preemptor, name, now, shrink_only):
        if eviction.victim.id not in exclude and trial.add(eviction) and trial.fits():
            return trial.needed()
    trial.restore()
    return []


def _elastic_nodes(preemptor: PreemptorRequest) -> list[str]:
    """Return allowed nodes with elastic jobs, which may resume with fewer GPUs."""
    jobs = sorted(preemptor.state.running_elastic.items())
    parts = (part for _, job in jobs if job.placement is not None for part in job.placement.parts)
    return [name for name in dict.fromkeys(part.node for part in parts) if preemptor.allows(name)]


class _NodeTrial:
    """What a node would have free if some victims stopped."""

    def __init__(self, future: FutureCapacity, preemptor: PreemptorRequest, name: str) -> None:
        self.future, self.preemptor, self.name = future, preemptor, name
        self.evictions: dict[int, Eviction] = {}
        self._released: dict[int, Eviction] = {}
        node = future.node(name)
        assert node is not None
        self._is_available = node.unavailable_reason is None
        self._free_by_gpu = available_on(node, GPU)
        self._free = {type: sum(available_on(node, type).values()) for type in preemptor.min_free}

    def add(self, eviction: Eviction) -> bool:
        """Add an eviction; return whether the amounts may be enough now."""
        freed = self._freed_by(eviction)
        if not self._is_available or not (freed or self.preemptor.request.exclusive):
            return False
        before = self.evictions.pop(eviction.victim.id, None)
        if before is not None:  # first a part of its GPUs, now all of them
            self._count(before, -1)
            if self._released.pop(eviction.victim.id, None):
                restore_victims(self.future, [before])
        self.evictions[eviction.victim.id] = eviction
        self._count(eviction, +1)
        free, min_free = self._free, self.preemptor.min_free
        if not all(free[type] >= amount for type, amount in min_free.items()):
            return False
        return max_request_amount(self._free_by_gpu.values()) >= min_free.get(GPU, 0)

    def _freed_by(self, eviction: Eviction) -> list[DeviceAllocation]:
        """Return what an eviction frees here of the requested types."""
        parts = _freed_placement(self.future, eviction)
        freed = chain.from_iterable(part.allocations for part in parts if part.node == self.name)
        return [allocation for allocation in freed if allocation.type in self.preemptor.min_free]

    def _count(self, eviction: Eviction, sign: int) -> None:
        for freed in self._freed_by(eviction):
            self._free[freed.type] += sign * freed.amount
            if freed.type == GPU and freed.device in self._free_by_gpu:
                self._free_by_gpu[freed.device] += sign * freed.amount

    def fits(self) -> bool:
        """Release all evictions in the future capacity; return whether the request fits then."""
        for id, eviction in self.evictions.items():
            if id not in self._released:
                release_victims(self.future, [eviction])
                self._released[id] = eviction
        return self._fits()

    def _fits(self) -> bool:
        node = self.future.node(self.name)
        return node is not None and fit(node, self.preemptor.node_part) is not None

    def needed(self) -> list[Eviction]:
        """Restore the victims that are not needed, in the order of adding; return the others."""
        needed = []
        for eviction in self.evictions.values():
            restore_victims(self.future, [eviction])
            if not self._fits():
                release_victims(self.future, [eviction])
                needed.append(eviction)
        return needed

    def restore(self) -> None:
        """Restore all victims."""
        restore_victims(self.future, list(self._released.values()))


def _evictions_on(
    preemptor: PreemptorRequest, name: str, now: float, shrink_only: bool
) -> Iterator[Eviction]:
    """Yield possible evictions on a node, the cheapest first: shrinking, then the lowest rank."""
    state = preemptor.state
    for _, job in sorted(state.running_elastic.items()):
        if job.placement is None or job.placement.on(name) is None:
            continue
        if job.priority <= preemptor.priority and can_preempt(job):
            keeps = elastic.min_request(state, job)
            if keeps is not None:
                yield Eviction(job, keeps)
    threshold = (-preemptor.priority, preemptor.min_victim_rank)
    for key in state.victims.victims_on(name) if not shrink_only else ():
        if threshold >= key[:2]:
            return  # all further victims rank before this one
        if _may_be_victim(preemptor, state.jobs[key[3]], now):
            yield Eviction(state.jobs[key[3]])


def _may_be_victim(preemptor: PreemptorRequest, job: Job, now: float) -> bool:
    """Whether a job of lower rank may be preempted now."""
    state = preemptor.state
    if not can_preempt(job) or job.priority != preemptor.priority:
        return can_preempt(job)
    if not state.preempts(job) or not _loses_nothing(state, job):
        return False
    outranked = state.victims.rank_of(job.id) > preemptor.min_victim_rank
    return outranked and _exceeded_quantum(state, job, now)


def _loses_nothing(state: State, job: Job) -> bool:
    """Whether a job saves its work before it stops."""
    accepts_stop = job.progress is not None and job.progress.accepts_stop
    return accepts_stop or state.spec(job).early_signal is not None


def _exceeded_quantum(state: State, job: Job, now: float) -> bool:
    """Whether the attempt has run for the quantum of its policy."""
    quantum = state.policy_of(state.spec(job).queue).quantum
    return job.started_at is not None and now - job.started_at >= quantum


def _drop_unneeded(
    future: Cluster, request: ResourceRequest, evictions: list[Eviction]
) -> list[Eviction]:
    """Restore the victims that a gang does not need, in the order of selection."""
    needed = []
    for eviction in evictions:
        restore_victims(future, [eviction])
        if find_placement(future, request) is None:
            release_victims(future, [eviction])
            needed.append(eviction)
    return needed


def release_victims(ledger: Cluster, evictions: list[Eviction]) -> None:
    """Release what evictions free."""
    for eviction in evictions:
        for part in _freed_placement(ledger, eviction):
            ledger.release(part)


def restore_victims(ledger: Cluster, evictions: list[Eviction]) -> None:
    """Undo `release_victims`."""
    for eviction in evictions:
        for part in _freed_placement(ledger, eviction):
            ledger.allocate(part)


def _freed_placement(ledger: Cluster, eviction: Eviction) -> list[Placement]:
    """Return what an eviction frees, except for devices that their node no longer has."""
    placement = eviction.victim.placement
    assert placement is not None
    kept_gpus = elastic.gpu_count(eviction.keeps) if eviction.keeps is not None else 0
    parts = []
    for part in placement.parts:
        node, allocations = ledger.node(part.node), part.allocations
        devices = node.by_name if node is not None else {}
        if kept_gpus:  # it keeps the first of its GPUs, and everything that is not a GPU
            gpus = tuple(allocation for allocation in allocations if allocation.type == GPU)
            allocations, kept_gpus = gpus[kept_gpus:], max(kept_gpus - len(gpus), 0)
        present = [
            allocation
            for allocation in allocations
            if not devices[allocation.type, allocation.device].removed
        ]
        parts.append(Placement(part.node, tuple(present)))
    return parts
