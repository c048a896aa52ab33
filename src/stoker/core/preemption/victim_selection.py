"""Victim selection: a minimal set of running jobs whose devices let a preemptor start.

On one node, or on as many as a gang misses, victims are released in victim order (lowest
priority, then largest rank) until the request fits; then those that are not needed are kept
running, in the same order (Kubernetes and Kueue do so in the reverse order: SelectVictimsOnNode,
fillBackWorkloads).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from math import inf, log2

from msgspec import Struct

from stoker.core.cluster.cluster import Cluster
from stoker.core.elastic import sizes as elastic
from stoker.core.model.job import Job
from stoker.core.model.resources import GPU, Placement, ResourceRequest
from stoker.core.placement.capacity import count_feasible_nodes
from stoker.core.placement.fit import fit
from stoker.core.placement.placer import find_placement
from stoker.core.policies.ranking import Threshold
from stoker.core.preemption.candidate_nodes import candidate_nodes
from stoker.core.queue.job_class import JobClass
from stoker.core.running.victims import can_preempt
from stoker.core.state.reranking import update_victims_on
from stoker.core.state.state import State

MAX_NODES_PER_PREEMPTOR = 8
"""Nodes on which victims are tried for each node that one preemptor requests."""


class Eviction(Struct, frozen=True):
    """A victim that stops: for good, or to resume with the least GPUs that it needs."""

    victim: Job
    freed: Placement
    resize_to: int | None = None


class VictimSelector:
    """Selects the victims of one pending job; they are released in the future capacity."""

    def __init__(
        self, state: State, future: Cluster, request: ResourceRequest, job_class: JobClass,
        rank: float, at: float,
    ) -> None:  # fmt: skip
        self.state, self.future, self.at = state, future, at
        self.request, self.node_part = request, request.part
        policy = state.policy_of(job_class.queue)
        min_rank = rank + log2(policy.hysteresis) if policy.preempts else inf
        self.priority = job_class.priority
        self.threshold: Threshold = (-self.priority, min_rank)
        """Victims rank behind this: they have a lower priority, or their rank is larger."""

    def select(self) -> list[Eviction]:
        """Return a minimal set of evictions; [] if none helps."""
        if self.request.node_count > 1:
            return self._select_for_gang()
        for name in self._elastic_nodes():
            if evictions := self._select_on(name, self._shrinks_on(name)):
                return evictions
        for name in self._candidate_nodes():
            if evictions := self._select_on(name, self._evictions_on(name)):
                return evictions
        return []

    def restore(self, evictions: Iterable[Eviction]) -> None:
        """Allocate again what victims would free."""
        for eviction in evictions:
            self.future.allocate(eviction.freed)

    def _select_for_gang(self) -> list[Eviction]:
        """Return evictions on as many nodes as a gang misses."""
        future, request, names = self.future, self.request, list(self._candidate_nodes())
        evictions: list[Eviction] = []
        if count_feasible_nodes(future, request) + len(names) < request.node_count:
            return []
        for name in names:
            if self._fits_on(name):
                continue
            evicted = {eviction.victim.id for eviction in evictions}
            possible = (each for each in self._evictions_on(name) if each.victim.id not in evicted)
            evictions += self._select_on(name, possible)
            if count_feasible_nodes(future, request) == request.node_count:
                break

        def fits() -> bool:
            return find_placement(future, request) is not None

        if evictions and fits():
            return self._drop_unneeded(evictions, fits)
        self.restore(evictions)
        return []

    def _select_on(self, name: str, possible: Iterable[Eviction]) -> list[Eviction]:
        """Return the first of possible evictions that a node needs; [] if all are not enough."""
        evictions: dict[int, Eviction] = {}
        for eviction in possible:
            id = eviction.victim.id
            if id in evictions:  # first a part of its GPUs, now all of them
                self.restore([evictions.pop(id)])
            evictions[id] = eviction
            self.future.release(eviction.freed)
            if self._fits_on(name):
                return self._drop_unneeded(evictions.values(), lambda: self._fits_on(name))
        self.restore(evictions.values())
        return []

    def _fits_on(self, name: str) -> bool:
        node = self.future.node(name)
        return node is not None and fit(node, self.node_part) is not None

    def _drop_unneeded(
        self, evictions: Iterable[Eviction], fits: Callable[[], bool]
    ) -> list[Eviction]:
        """Restore the victims without which the request fits, in the order of selection."""
        needed = []
        for eviction in evictions:
            self.restore([eviction])
            if not fits():
                self.future.release(eviction.freed)
                needed.append(eviction)
        return needed

    def _candidate_nodes(self) -> Iterator[str]:
        """Return the allowed nodes on which preemption may help, the best first."""
        best = candidate_nodes(self.state, self.node_part, self.threshold, self.at)
        elastic_nodes = self._elastic_nodes()
        names = chain(elastic_nodes, (name for name in best if name not in elastic_nodes))
        max_nodes = MAX_NODES_PER_PREEMPTOR * self.request.node_count
        return islice(filter(self._allows, names), max_nodes)

    def _elastic_nodes(self) -> list[str]:
        """Return allowed nodes with elastic jobs, which may resume with fewer GPUs."""
        jobs = (job for _, job in sorted(self.state.running_elastic.items()))
        names = dict.fromkeys(part.node for job in jobs for part in job.parts)
        return list(filter(self._allows, names))

    def _allows(self, name: str) -> bool:
        """Whether the request allows a node by its name."""
        request = self.request
        return name not in request.not_nodes and (not request.nodes or name in request.nodes)

    def _shrinks_on(self, name: str) -> Iterator[Eviction]:
        """Yield the elastic jobs on a node that may resume with fewer GPUs."""
        for _, job in sorted(self.state.running_elastic.items()):
            if job.placement is None or job.placement.on(name) is None:
                continue
            if job.priority <= self.priority and can_preempt(job):
                keeps = elastic.min_request(self.state, job)
                if keeps is not None:
                    kept_gpus = elastic.gpu_count(keeps)
                    yield Eviction(job, self._freed(job, kept_gpus), kept_gpus)

    def _evictions_on(self, name: str) -> Iterator[Eviction]:
        """Yield possible evictions on a node: shrinking first, then in victim order."""
        state = self.state
        yield from self._shrinks_on(name)
        update_victims_on(state, name, self.at)
        for key in state.victims.victims_on(name):
            if key[:2] <= self.threshold:
                return  # so do all further victims
            job = state.jobs[key[3]]
            is_lower = job.priority < self.priority
            if can_preempt(job) and (is_lower or _gives_way_to_equals(state, job, self.at)):
                yield Eviction(job, self._freed(job))

    def _freed(self, job: Job, kept_gpus: int = 0) -> Placement:
        """Return what a victim frees, except for devices that their node no longer has.

        One that resumes keeps the first of its GPUs, and everything that is not a GPU.
        """
        parts = []
        for part in job.parts:
            node, allocations = self.future.node(part.node), part.allocations
            assert node is not None
            if kept_gpus:
                gpus = tuple(allocation for allocation in allocations if allocation.type == GPU)
                allocations, kept_gpus = gpus[kept_gpus:], max(kept_gpus - len(gpus), 0)
            present = [each for each in allocations if not node.device(each).removed]
            parts.append(Placement(part.node, tuple(present)))
        return Placement(parts[0].node, parts[0].allocations, tuple(parts[1:]))


def _gives_way_to_equals(state: State, job: Job, at: float) -> bool:
    """Whether a job may be preempted for one of equal priority: it must lose nothing by that."""
    spec = state.spec(job)
    policy = state.policy_of(spec.queue)
    saves_work = job.progress.accepts_stop or spec.early_signal is not None
    has_run = job.started_at is not None and at - job.started_at >= policy.quantum
    return policy.preempts and saves_work and has_run
