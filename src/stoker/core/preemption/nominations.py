"""Nominations: devices that are being freed by preemption, each held for its preemptor.

A nomination is what Kubernetes calls a nominated node and Volcano a pipelined task. It is derived
in every plan from the stop requests of the victims, so it does not outlive them, and a restart
changes nothing. Within a plan it is revoked when a job that ranks before the preemptor takes the
devices.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.overlay import Overlay
from stoker.core.elastic import sizes as elastic
from stoker.core.model.job import Job
from stoker.core.model.resources import Placement, ResourceRequest
from stoker.core.placement.placer import find_placement, find_placement_on
from stoker.core.running.victims import is_stopping
from stoker.core.state.state import State
from stoker.core.structures import SortKey


class Nomination(NamedTuple):
    """A placement that is held for a pending job, which has this position in the queue."""

    key: SortKey
    job: int
    placement: Placement


class Nominations:
    """The nominations in queue order, and the future capacity that they are taken from.

    The future capacity is the ledger plus the devices of stopping jobs minus nominations. (Volcano:
    FutureIdle = Idle + Releasing - Pipelined.) It is built again in every plan: at 1,000
    nodes and 10,000 jobs that costs no more than keeping it up to date.

    Derived from: the ledger, and the stopping jobs with their preemptors.
    Invariant: every nominated placement is allocated in the future capacity.
    Invalidated by: `refresh`, which the planner calls when jobs stop or no longer stop.
    Cost: proportional to the number of stopping jobs and nominations, per plan.
    """

    def __init__(self, state: State, at: float) -> None:
        self.state, self.at = state, at
        self.revocations = 0
        """Number of nominations revoked so far."""
        self.counting_on_surplus: set[int] = set()
        """Jobs that only count on what stopping jobs free; it is allocated for them already."""
        self._preemptors: set[int] = set()
        """Pending jobs with victims."""
        self._sorted: list[Nomination] = []
        self._ledger: Overlay | None = None
        self._withheld_count = 0
        self.refresh()

    def refresh(self) -> None:
        """Derive the future capacity and the nominations from the jobs that are stopping.

        In queue order, each preemptor gets what its own victims free, with what is free beside.
        """
        state = self.state
        self.future = Overlay(state.cluster)
        state.thresholds.follow(self.future)
        self._sorted, self._ledger = [], None
        self.counting_on_surplus.clear()
        self._preemptors.clear()
        state.memory.nominations.clear()
        if not state.preemptible:
            return  # jobs that end anyway are not waited for
        victims: dict[int, list[Job]] = {}
        others: list[Job] = []
        for _, job in sorted(state.stopping.items()):
            preemptor = stop.preemptor if (stop := job.progress.stop) is not None else None
            if preemptor is not None and preemptor in state.pending:
                victims.setdefault(preemptor, []).append(job)
            else:
                others.append(job)
        self._preemptors.update(victims)
        for key, id in sorted((state.pending.sort_key(state.jobs[id]), id) for id in victims):
            self._release(victims[id])
            request = state.startable_request(state.jobs[id], state.pending.class_of[id], self.at)
            if request.node_count > 1:
                placement = find_placement(self.future, request)
            else:
                nodes = dict.fromkeys(part.node for job in victims[id] for part in job.parts)
                placement = find_placement_on(self.future, nodes, request)
            if placement is not None:
                self.future.allocate(placement)
                state.memory.nominations[id] = placement
                self._sorted.append(Nomination(key, id, placement))
        self._release(others)

    def _release(self, victims: Iterable[Job]) -> None:
        """Release what stopping jobs hold, less what they resume with if they are resized."""
        for job in victims:
            if job.placement is None or not is_stopping(job):
                continue
            self.future.release(job.placement)
            if (stop := job.progress.stop) is not None and stop.resize_to:
                request = self.state.effective_request(job, self.state.spec(job))
                request = self.state.within_horizon(job, request, self.at)
                max_gpus = elastic.gpus_per_node(self.state)
                resized = elastic.resized(request, stop.resize_to, max_gpus)
                if (placement := find_placement(self.future, resized)) is not None:
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

    def claim(
        self, key: SortKey, job: int, placement: Placement, has_new_victims: bool = False
    ) -> None:
        """Allocate a placement in the future capacity; it is held for a job that has victims."""
        self.future.allocate(placement)
        if has_new_victims:
            self._preemptors.add(job)
        elif job not in self._preemptors:
            self.counting_on_surplus.add(job)
            return
        self.state.memory.nominations[job] = placement
        insort(self._sorted, Nomination(key, job, placement))
        self._ledger = None

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
        if self._ledger is not None:
            self._ledger.allocate_modified(placement)
        if not self.future.allocate_modified(placement):
            self.refresh()  # it has devices that were nominated to a lower-ranked job

    def find_placement(self, key: SortKey, request: ResourceRequest) -> Placement | None:
        """Find devices in the future capacity, or nominated to jobs after this position.

        Nominations are revoked from the last one on, until the request fits.
        """
        revoked: list[Nomination] = []
        while (placement := find_placement(self.future, request)) is None:
            if not self._sorted or self._sorted[-1].key < key:
                for entry in reversed(revoked):
                    self.future.allocate(entry.placement)
                    self._sorted.append(entry)
                return None
            revoked.append(self._sorted.pop())
            self.future.release(revoked[-1].placement)
        for entry in revoked:
            del self.state.memory.nominations[entry.job]
            self.revocations, self._ledger = self.revocations + 1, None
        return placement
