"""Victim selection: a minimal set of running jobs whose devices let a preemptor start.

On one node, or on as many as a gang misses, victims are released in victim order (lowest
priority, then largest rank) until the request fits; then those that are not needed are kept
running, in the same order (Kubernetes and Kueue do so in the reverse order: GetVictimsOnNode,
fillBackWorkloads).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from itertools import islice
from math import inf, log2

from msgspec import Struct

from stoker.core.cluster.cluster import Cluster
from stoker.core.elastic import sizes as elastic
from stoker.core.model.hardware import Placement
from stoker.core.model.job import Job
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.placement.capacity import count_feasible_nodes
from stoker.core.placement.fit import fit
from stoker.core.placement.placer import find_placement
from stoker.core.preemption.threshold_query import ThresholdQuery
from stoker.core.queue.job_class import JobClass
from stoker.core.running.victims import can_preempt
from stoker.core.state.state import State
from stoker.core.state.victim_ranks import update_victims_on

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
        policy = state.policy_of(job_class.queue)
        self.min_victim_rank = rank + log2(policy.hysteresis) if policy.preempts else inf
        """Victims of equal priority must have a rank above this."""

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

    def fits() -> bool:
        return find_placement(future, request) is not None

    if evictions and fits():
        return _drop_unneeded(future, evictions, fits)
    restore_victims(future, evictions)
    return []


def _candidate_nodes(thresholds: ThresholdQuery, preemptor: PreemptorRequest) -> Iterator[str]:
    """Return the nodes on which preemption may help, the best first."""
    names: Iterable[str] = thresholds.candidate_nodes(
        preemptor.node_part,
        (-preemptor.priority, preemptor.min_victim_rank),
    )
    if preemptor.state.running_elastic:
        names = dict.fromkeys([*_elastic_nodes(preemptor), *names])
    max_nodes = MAX_NODES_PER_PREEMPTOR * preemptor.request.node_count
    return islice(filter(preemptor.allows, names), max_nodes)


def _select_on(
    future: Cluster,
    name: str,
    preemptor: PreemptorRequest,
    now: float,
    shrink_only: bool = False,
    exclude: Container[int] = (),
) -> list[Eviction]:
    """Return the evictions that a node needs, released in the future capacity; [] if none help.

    With `shrink_only`, only elastic jobs that resume with fewer GPUs are victims.
    """
    evictions: dict[int, Eviction] = {}

    def fits() -> bool:
        node = future.node(name)
        return node is not None and fit(node, preemptor.node_part) is not None

    for eviction in _evictions_on(preemptor, name, now, shrink_only):
        id = eviction.victim.id
        if id in exclude:
            continue
        if id in evictions:  # first a part of its GPUs, now all of them
            restore_victims(future, [evictions.pop(id)])
        evictions[id] = eviction
        release_victims(future, [eviction])
        if fits():
            return _drop_unneeded(future, evictions.values(), fits)
    restore_victims(future, evictions.values())
    return []


def _elastic_nodes(preemptor: PreemptorRequest) -> list[str]:
    """Return allowed nodes with elastic jobs, which may resume with fewer GPUs."""
    jobs = sorted(preemptor.state.running_elastic.items())
    parts = (part for _, job in jobs if job.placement is not None for part in job.placement.parts)
    return [name for name in dict.fromkeys(part.node for part in parts) if preemptor.allows(name)]


def _evictions_on(
    preemptor: PreemptorRequest, name: str, now: float, shrink_only: bool
) -> Iterator[Eviction]:
    """Yield possible evictions on a node, the cheapest first: shrinking, then in victim order."""
    state = preemptor.state
    for _, job in sorted(state.running_elastic.items()):
        if job.placement is None or job.placement.on(name) is None:
            continue
        if job.priority <= preemptor.priority and can_preempt(job):
            keeps = elastic.min_request(state, job)
            if keeps is not None:
                yield Eviction(job, keeps)
    if shrink_only:
        return
    threshold = (-preemptor.priority, preemptor.min_victim_rank)
    update_victims_on(state, name, now)
    for key in state.victims.victims_on(name):
        if threshold >= key[:2]:
            return  # all further victims rank before this one
        if _may_be_victim(preemptor, state.jobs[key[3]], now):
            yield Eviction(state.jobs[key[3]])


def _may_be_victim(preemptor: PreemptorRequest, job: Job, now: float) -> bool:
    """Whether a job that ranks behind the preemptor may be preempted now."""
    state = preemptor.state
    if not can_preempt(job) or job.priority != preemptor.priority:
        return can_preempt(job)
    if not state.preempts(job) or not _loses_nothing(state, job):
        return False
    outranked = state.victims.key_of(job.id)[1] > preemptor.min_victim_rank
    return outranked and _exceeded_quantum(state, job, now)


def _loses_nothing(state: State, job: Job) -> bool:
    """Whether a job saves its work before it stops."""
    return job.progress.accepts_stop or state.spec(job).early_signal is not None


def _exceeded_quantum(state: State, job: Job, now: float) -> bool:
    """Whether the attempt has run for the quantum of its policy."""
    quantum = state.policy_of(state.spec(job).queue).quantum
    return job.started_at is not None and now - job.started_at >= quantum


def _drop_unneeded(
    future: Cluster, evictions: Iterable[Eviction], fits: Callable[[], bool]
) -> list[Eviction]:
    """Restore the victims without which the request fits, in the order of selection."""
    needed = []
    for eviction in evictions:
        restore_victims(future, [eviction])
        if not fits():
            release_victims(future, [eviction])
            needed.append(eviction)
    return needed


def release_victims(ledger: Cluster, evictions: Iterable[Eviction]) -> None:
    """Release what evictions free."""
    for eviction in evictions:
        for part in _freed_placement(ledger, eviction):
            ledger.release(part)


def restore_victims(ledger: Cluster, evictions: Iterable[Eviction]) -> None:
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
