"""Pending jobs of all classes in order, lazily: all of them, or only possible preemptors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from heapq import heappop, heappush
from itertools import count

from stoker.core.policies.ranking import Threshold
from stoker.core.queue.job_class import OVERDUE_CUTOFF, JobClass
from stoker.core.queue.pending_queue import PendingQueue
from stoker.core.structures.amounts import SortKey

ThresholdFor = Callable[[int], Threshold]
"""Returns, for a number of GPUs on one node, the rank that a preemptor must be below."""
_HeapItem = tuple[SortKey, int, JobClass, Iterator[SortKey]]


class QueueHeads:
    """Pending jobs in order, without those of exhausted classes."""

    def __init__(self, pending: PendingQueue, exhausted: set[JobClass] | None = None) -> None:
        """`exhausted`: classes of which no further job is wanted; the caller may add to it."""
        self.pending = pending
        self.exhausted: set[JobClass] = exhausted if exhausted is not None else set()

    def __iter__(self) -> Iterator[tuple[SortKey, JobClass, int]]:
        """Yield the sort key, the class and the id of each job."""
        heads = iter(self.pending.order.copy())
        head = next(heads, None)
        followers: list[_HeapItem] = []
        tie_breaker = count()
        while head is not None or followers:
            if head is not None and (not followers or head[0] < followers[0][0]):
                (key, job_class), keys = head, None
                head = next(heads, None)
            else:
                key, _, job_class, keys = heappop(followers)
            if job_class in self.exhausted or not self.may_preempt(key, job_class):
                continue
            if keys is None:
                keys = job_class.sort_keys()
                next(keys, None)
            if self._is_current(key, job_class):
                yield key, job_class, int(key[-1])
            following = next(keys, None) if job_class not in self.exhausted else None
            if following is not None:
                heappush(followers, (following, next(tie_breaker), job_class, keys))

    def _is_current(self, key: SortKey, job_class: JobClass) -> bool:
        """Whether the job of an entry is still pending in this class with this rank."""
        pending, id = self.pending, int(key[-1])
        if pending.class_of.get(id) is not job_class:
            return False
        return job_class.effective_rank(pending.rank_of.get(id, 0.0)) == key[1]

    def may_preempt(self, key: SortKey, job_class: JobClass) -> bool:
        """Whether a job at this position is of interest."""
        return True

    def invalidate(self) -> None:
        """Recompute thresholds when they are next needed."""


class PreemptorHeads(QueueHeads):
    """Pending jobs that outrank a victim, and all overdue ones.

    A class that was checked before is compared with the thresholds of changed nodes only, an
    unchecked one with those of all nodes.
    """

    def __init__(
        self,
        pending: PendingQueue,
        changed_nodes: ThresholdFor,
        all_nodes: ThresholdFor | None = None,
        exhausted: set[JobClass] | None = None,
    ) -> None:
        """Without `all_nodes`, every class is compared with `changed_nodes`."""
        super().__init__(pending, exhausted)
        self.all_nodes = cache(all_nodes or changed_nodes)
        self.changed_nodes = cache(changed_nodes)

    def invalidate(self) -> None:
        """Recompute thresholds when they are next needed: capacity was nominated."""
        self.all_nodes.cache_clear()
        self.changed_nodes.cache_clear()

    def may_preempt(self, key: SortKey, job_class: JobClass) -> bool:
        """Whether a job at this position is overdue or below the threshold of its GPU count."""
        if key[1] <= OVERDUE_CUTOFF:
            return True
        threshold_for = self.all_nodes if job_class.is_unchecked else self.changed_nodes
        return key[:2] < threshold_for(job_class.gpu_bucket)
