"""Nominations: devices that are being freed by preemption, each held for its preemptor.

A nomination is what Kubernetes calls a nominated node and Volcano a pipelined task. It is derived
in every cycle from the stop requests of the victims, so it does not outlive them, and a restart
changes nothing. Within a cycle it is revoked when a job that ranks before the preemptor takes the
devices.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.overlay import Overlay
from stoker.core.elastic import sizes as elastic
from stoker.core.model.hardware import Placement
from stoker.core.model.job import Job, StopRequest
from stoker.core.model.resources import ResourceRequest
from stoker.core.placement.placer import find_placement, find_placement_on
from stoker.core.running.future_capacity import FutureCapacity, can_preempt, is_stopping
from stoker.core.state.state import State
from stoker.core.structures.amounts import SortKey


class Nomination(NamedTuple):
    """A placement that is held for a pending job, which has this position in the queue."""

    key: SortKey
    job: int
    placement: Placement


class Nominations:
    """The nominations in queue order, and the future capacity that they are taken from.

    Derived from: the ledger, and the stopping jobs with their preemptors.
    Invariant: every nominated placement is allocated in the future capacity.
    Invalidated by: `refresh`, which the planner calls when jobs stop or no longer stop.
    Cost: proportional to the number of stopping jobs and nominations, per planning cycle.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.revocations = 0
        """Number of nominations revoked so far."""
        self.counting_on_surplus: set[int] = set()
        """Jobs that only count on what stopping jobs free; it is allocated for them already."""
        self._sorted: list[Nomination] = []
        self._ledger: Overlay | None = None
        self._withheld_count = 0
        self.refresh()

    def refresh(self) -> None:
        """Derive the future capacity and the nominations from the jobs that are stopping.

        In queue order, each preemptor gets what its own victims free, with what is free beside.
        """
        state = self.state
        self.future = FutureCapacity(
            state.cluster, state.victims, lambda job: can_preempt(state.jobs[job])
        )
        self._sorted, self._ledger = [], None
        self.counting_on_surplus.clear()
        state.memory.nominations.clear()
        if not state.preemptible:
            return  # jobs that end anyway are not waited for
        victims: dict[int, list[Job]] = {}
        others: list[Job] = []
        for _, job in sorted(state.stopping.items()):
            preemptor = stop.preemptor if (stop := _stop_request(job)) is not None else None
            if preemptor is not None and preemptor in state.pending:
                victims.setdefault(preemptor, []).append(job)
            else:
                others.append(job)
        for key, id in sorted((state.pending.sort_key(state.jobs[id]), id) for id in victims):
            self._release(victims[id])
            request = state.class_request(state.jobs[id], state.pending.class_of[id])
            placements = [job.placement for job in victims[id] if job.placement is not None]
            nodes = {part.node: None for placement in placements for part in placement.parts}
            placement = self._search(request, nodes, everywhere=False)
            if placement is not None:
                self.future.allocate(placement)
                state.memory.nominations[id] = placement
                self._sorted.append(Nomination(key, id, placement))
            else:  # it may have counted on other stopping jobs, or preempt again
                state.pending.mark_unchecked(state.pending.class_of[id])
        self._release(others)

    def _release(self, victims: Iterable[Job]) -> None:
        """Release what stopping jobs hold, less what they resume with if they are resized."""
        for job in victims:
            if job.placement is not None and is_stopping(job):
                self.future.release(job.placement)
                if (stop := _stop_request(job)) is not None and stop.resize_to:
                    self._allocate_resized(job, stop.resize_to)

    def _allocate_resized(self, job: Job, gpus: int) -> None:
        """Allocate the GPUs with which a job that stops to be resized resumes at once."""
        request = self.state.effective_request(job, self.state.spec(job))
        resized = elastic.resized(request, gpus, elastic.gpus_per_node(self.state))
        placement = find_placement(self.future, resized)
        if placement is not None:
            self.future.allocate(placement)

    def ledger_for(self, key: SortKey) -> Cluster:
        """Return the ledger without what is nominated to jobs before this position.

        During a scan positions ascend; it is the same overlay, of which more is withheld.
        """
        if not self._sorted or self._sorted[0].key >= key:
            return self.state.cluster
        if self._ledger is None:
            self._ledger, self._withheld_count = Overlay(self.state.cluster), 0
        for entry in self._sorted[self._withheld_count :]:
            if entry.key >= key:  # what is nominated to the job itself, it may have
                break
            self._ledger.withhold(entry.placement)
            self._withheld_count += 1
        return self._ledger

    def unnominated_ledger(self) -> Overlay:
        """Return the ledger without anything that is nominated."""
        ledger = Overlay(self.state.cluster)
        for entry in self._sorted:
            ledger.withhold(entry.placement)
        return ledger

    def nominate(self, key: SortKey, job: int, placement: Placement) -> bool:
        """Allocate a placement in the future capacity; hold it if jobs stop for this one.

        Returns whether it is held. Otherwise it is surplus that the job only counts on.
        """
        self.future.allocate(placement)
        stops = map(_stop_request, self.state.stopping.values())
        if not any(stop is not None and stop.preemptor == job for stop in stops):
            self.counting_on_surplus.add(job)
            return False
        self.state.memory.nominations[job] = placement
        insort(self._sorted, Nomination(key, job, placement))
        self._ledger = None
        return True

    def replace(self, nominations: Iterable[tuple[SortKey, int, Placement]]) -> None:
        """Hold other placements, all of which are allocated in the future capacity already."""
        self._sorted = sorted(Nomination(*each) for each in nominations)
        self.state.memory.nominations = {entry.job: entry.placement for entry in self._sorted}
        self._ledger = None

    def on_start(self, job: int, placement: Placement) -> None:
        """Drop the nomination of a job that has started, and revoke those that it took."""
        self.state.memory.nominations.pop(job, None)
        for entry in [entry for entry in self._sorted if entry.job == job]:
            self.future.release(entry.placement)
            self._sorted.remove(entry)
        self._ledger = None
        parts = [
            Placement(part.node, part.allocations)
            for part in placement.parts
            if part.node in self.future.nodes  # on other nodes, the ledger shows through
        ]
        if all(self.future.is_free(part) for part in parts):
            for part in parts:
                self.future.allocate(part)
        else:  # it has devices that were nominated to a lower-ranked job
            self.refresh()

    def find_placement(
        self, key: SortKey, request: ResourceRequest, everywhere: bool
    ) -> Placement | None:
        """Find devices in the future capacity, or nominated to jobs after this position.

        Unless `everywhere`, the request is known not to fit on nodes without stopping jobs.
        """
        placement = self._search(request, self.future.nodes, everywhere)
        return placement or self._take_from_lower_rank(key, request, everywhere)

    def _search(
        self, request: ResourceRequest, nodes: Iterable[str], everywhere: bool
    ) -> Placement | None:
        if everywhere or request.node_count > 1:
            return find_placement(self.future, request)
        return find_placement_on(self.future, nodes, request)

    def _take_from_lower_rank(
        self, key: SortKey, request: ResourceRequest, everywhere: bool
    ) -> Placement | None:
        """Revoke nominations after this position, the last first, until the request fits."""
        revoked: list[Nomination] = []
        while self._sorted and self._sorted[-1].key > key:
            entry = self._sorted.pop()
            revoked.append(entry)
            self.future.release(entry.placement)
            nodes = [part.node for part in entry.placement.parts]
            placement = self._search(request, nodes, everywhere)
            if placement is not None:
                for entry in revoked:
                    self._revoke(entry.job)
                self._ledger = None
                return placement
        for entry in reversed(revoked):
            self.future.allocate(entry.placement)
            self._sorted.append(entry)
        return None

    def _revoke(self, job: int) -> None:
        """Give up the nomination of a job, which may preempt again."""
        self.revocations += 1
        placement, pending = self.state.memory.nominations.pop(job), self.state.pending
        self.state.thresholds.changed.update((part.node, None) for part in placement.parts)
        if job in pending:
            pending.mark_unchecked(pending.class_of[job])


def _stop_request(job: Job) -> StopRequest | None:
    return job.progress.stop if job.progress is not None else None
