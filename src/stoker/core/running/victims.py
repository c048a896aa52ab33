"""Preemptible running jobs in victim order: lowest priority first, then largest rank."""

from __future__ import annotations

from math import inf

from stoker.core.cluster.change_log import ChangeLog
from stoker.core.model.job import Job, JobState
from stoker.core.model.resources import CPU, GPU, MEMORY, Placement
from stoker.core.structures import SortedMap

VictimKey = tuple[int, float, float, int]
"""Minus the priority, rank, start time and id of a running job: the largest is preempted first."""
Freed = tuple[tuple[tuple[str, int], ...], int, int]
"""What a job frees on a node: amounts by GPU, cores and memory."""


def can_preempt(job: Job) -> bool:
    """Whether a job runs and was not asked to stop yet."""
    is_running = job.state is JobState.RUNNING and job.placement is not None
    return is_running and job.progress.stop is None


def is_stopping(job: Job) -> bool:
    """Whether the devices of a job become free soon; those of a suspended job do not."""
    if job.state is JobState.COMPLETING:
        return True
    stop = job.progress.stop
    return stop is not None and not stop.timed_out and job.state is JobState.RUNNING


class VictimIndex:
    """Preemptible running jobs by victim key, in all and per node.

    Derived from: `state.preemptible`, ranks, placements.
    Invariant: an outdated rank is too large, never too small, so that no victim is missed.
    Invalidated by: a new rank, with which a job is added again: when the rank grows, by
    `state.reranking`; if it has become smaller, when the job may become a victim, by
    `state.reranking`. (At 1,000 nodes, ranks that are always up to date would cost 1.3 ms per
    event.)
    Cost: O(log n) per change.
    """

    def __init__(self) -> None:
        self._keys = SortedMap[int, VictimKey]()
        self._valid_until: dict[int, float] = {}
        """When the rank of a job begins to be too large."""
        self._nodes: dict[int, list[str]] = {}
        self.freed_on: dict[str, dict[int, Freed]] = {}
        """What each victim would free, by node."""
        self.changes = ChangeLog()
        """Nodes with victims that were added, removed or changed."""

    def add(
        self, key: VictimKey, placement: Placement | None = None, valid_until: float = inf
    ) -> bool:
        """Add a job or move it; return whether it moved."""
        job = key[3]
        self._valid_until[job] = valid_until
        if job not in self._nodes:
            parts = placement.parts if placement is not None else ()
            self._nodes[job] = [part.node for part in parts]
            for part in parts:
                self.freed_on.setdefault(part.node, {})[job] = _freed_by(part)
        if is_moved := self._keys.set(job, key):
            self.mark_changed(job)
        return is_moved

    def is_outdated(self, job: int, at: float) -> bool:
        """Whether the rank of a job is too large by now."""
        return self._valid_until[job] <= at

    def mark_changed(self, job: int) -> None:
        """Note that a job changed its rank, or became preemptible again with the same rank."""
        for name in self._nodes.get(job, ()):
            self.changes.append(name)

    def key_of(self, job: int) -> VictimKey:
        """Return the victim key of a job."""
        return self._keys[job]

    def remove(self, job: int) -> None:
        """Remove a job, if it is present."""
        self._keys.remove(job)
        self._valid_until.pop(job, None)
        self.mark_changed(job)
        for name in self._nodes.pop(job, ()):
            del self.freed_on[name][job]
            if not self.freed_on[name]:
                del self.freed_on[name]

    def first_victim(self) -> VictimKey | None:
        """Return the key of the job that is preempted first."""
        return self._keys.rows[-1][0] if self._keys.rows else None

    def victims_on(self, node: str) -> list[VictimKey]:
        """Return the keys of the victims on a node, the first to preempt first."""
        return sorted([self._keys[job] for job in self.freed_on.get(node, ())], reverse=True)

    def __contains__(self, job: int) -> bool:
        return job in self._keys


def _freed_by(part: Placement) -> Freed:
    held = part.allocations
    cores, memory = (
        sum(each.amount for each in held if each.type == type) for type in (CPU, MEMORY)
    )
    return tuple((each.device, each.amount) for each in held if each.type == GPU), cores, memory
