"""Scans of the pending queue in order, which skip classes that cannot fit or are not wanted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from stoker.core.model.job import Job
from stoker.core.queue.job_class import JobClass, RequestSize, ShapeGroup
from stoker.core.queue.pending_queue import PendingQueue
from stoker.core.structures.amounts import BEFORE_ALL, CapacityTest, SortKey

CapacityTestFor = Callable[[ShapeGroup], CapacityTest]
"""Returns the test whether requests of a group may fit, by amounts and time limit."""


class QueueScan:
    """One scan of the pending queue: the heads of classes that may fit, in order.

    Invariant: capacity only shrinks during a scan, so a size that did not fit is not revisited.
    Cost: one capacity test per request size; 1,000 classes of 50 sizes take about 0.1 ms.
    """

    def __init__(
        self, pending: PendingQueue, jobs: dict[int, Job], test_for: CapacityTestFor
    ) -> None:
        self.pending, self.jobs, self.test_for = pending, jobs, test_for
        self._tests: dict[ShapeGroup, CapacityTest] = {}
        """Tests by group, until a candidate starts or is blocked."""
        self.position: SortKey = BEFORE_ALL
        """Sort key of the last candidate."""
        self._heads = pending.first_classes()
        """Heap of the next class of each size that may fit."""
        heapify(self._heads)
        self._last: JobClass | None = None
        self._blocked: set[JobClass] = set()
        """Classes without a group whose head did not fit."""
        self._queried: SortKey = BEFORE_ALL

    def _fits(self, size: RequestSize) -> bool:
        if size.group is None:
            return True
        test = self._tests.get(size.group)
        if test is None:
            test = self._tests[size.group] = self.test_for(size.group)
        return test(size.amounts)

    def next_candidate(self) -> tuple[Job, JobClass] | None:
        """Return the next job that may fit and its class; None at the end of the queue.

        The last candidate may have started by now; then its class has another head.
        """
        heads, last = self._heads, self._last
        if last is not None:
            index = bisect_right(last.size.order, (self.position, last))
            if index < len(last.size.order):
                heappush(heads, last.size.order[index])
        while heads:
            self.position, self._last = heappop(heads)
            if self._fits(self._last.size):
                return self.jobs[self._last.head], self._last
        self._last = None
        return None

    def on_start(self) -> None:
        """Note that the last candidate started."""
        self._tests.clear()

    def on_blocked(self) -> None:
        """Note that the last candidate did not fit."""
        self._tests.clear()
        if self._last is not None and self._last.size.group is None:
            self._blocked.add(self._last)

    def blocked_before(self, test_for: CapacityTestFor) -> Iterator[tuple[Job, JobClass]]:
        """Yield the heads passed over since the last call, if overdue or if the test holds."""
        after, self._queried = self._queried, self.position
        for job, job_class in heads_between(
            self.pending, self.jobs, test_for, self.position, after
        ):
            if job_class.size.group is not None or job_class in self._blocked:
                yield job, job_class


def heads_between(
    pending: PendingQueue,
    jobs: dict[int, Job],
    test_for: CapacityTestFor,
    end: SortKey,
    after: SortKey = BEFORE_ALL,
) -> Iterator[tuple[Job, JobClass]]:
    """Yield the heads of classes before `end` in order; in a group, if overdue or if it fits."""
    tests: dict[ShapeGroup, CapacityTest] = {}
    for key, job_class in pending.classes_from(after):
        if key >= end:
            return
        group = job_class.size.group
        if group is not None and not job_class.is_overdue:
            test = tests.get(group)
            if test is None:
                test = tests[group] = test_for(group)
            if not test(job_class.size.amounts):
                continue
        yield jobs[job_class.head], job_class


_HeapItem = tuple[SortKey, int, JobClass, Iterator[SortKey]]


def jobs_in_order(
    pending: PendingQueue, is_skipped: Callable[[SortKey, JobClass], bool] = lambda *_: False
) -> Iterator[tuple[SortKey, JobClass, int]]:
    """Yield the sort key, the class and the id of pending jobs, which may start meanwhile.

    `is_skipped`: whether neither the job at a position nor later ones of its class are wanted.
    """
    heads = iter(pending.order.copy())
    head = next(heads, None)
    followers: list[_HeapItem] = []
    tie_breaker = count()
    while head is not None or followers:
        if head is not None and (not followers or head[0] < followers[0][0]):
            (key, job_class), keys = head, None
            head = next(heads, None)
        else:
            key, _, job_class, keys = heappop(followers)
        if is_skipped(key, job_class):
            continue
        if keys is None:
            keys = job_class.sort_keys()
            next(keys, None)
        if _is_current(pending, key, job_class):
            yield key, job_class, int(key[-1])
        following = next(keys, None)
        if following is not None:
            heappush(followers, (following, next(tie_breaker), job_class, keys))


def _is_current(pending: PendingQueue, key: SortKey, job_class: JobClass) -> bool:
    """Whether the job of an entry is still pending in this class with this rank."""
    id = int(key[-1])
    if pending.class_of.get(id) is not job_class:
        return False
    return job_class.effective_rank(pending.rank_of.get(id, 0.0)) == key[1]
