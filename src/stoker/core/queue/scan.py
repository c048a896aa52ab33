"""One scan of the pending queue in order, which skips classes that cannot fit."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator

from stoker.core.model.job import Job
from stoker.core.queue.job_class import JobClass, ShapeGroup
from stoker.core.queue.pending_queue import PendingQueue
from stoker.core.structures.amounts import BEFORE_ALL, Amounts, CapacityTest, SortKey

CapacityTestFor = Callable[[ShapeGroup], CapacityTest]
"""Returns the test whether requests of a group may fit, by amounts and time limit."""


class QueueScan:
    """One scan of the pending queue: the heads of classes that may fit, in order.

    Invariant: capacity only shrinks during a scan, so a class that did not fit is not revisited.
    Cost: one capacity test per class; 1,000 classes take about 0.3 ms.
    """

    def __init__(
        self, pending: PendingQueue, jobs: dict[int, Job], test_for: CapacityTestFor
    ) -> None:
        self.pending, self.jobs, self.test_for = pending, jobs, test_for
        self.capacity_tests: dict[ShapeGroup, CapacityTest] = {}
        """Tests by group, until a placement is taken."""
        self._too_large: set[tuple[ShapeGroup, Amounts]] = set()
        """Amounts that did not fit; classes of several users have the same ones."""
        self.position: SortKey = BEFORE_ALL
        """Sort key of the last candidate."""
        self._entries = pending.order.copy()
        self._next_index = 0
        self._blocked: set[JobClass] = set()
        """Classes without a group that did not fit."""
        self._queried: SortKey = BEFORE_ALL

    def next_candidate(self) -> tuple[Job, JobClass] | None:
        """Return the next job that may fit and its class; None at the end of the queue."""
        for index in range(self._next_index, len(self._entries)):
            key, job_class = self._entries[index]
            if job_class.indexed_key == key and job_class.entries and self._may_fit(job_class):
                self.position, self._next_index = key, index + 1
                return self.jobs[job_class.head], job_class
        self._next_index = len(self._entries)
        return None

    def _may_fit(self, job_class: JobClass) -> bool:
        group = job_class.group
        if group is None:
            return True
        request = (group, job_class.amounts)
        if request in self._too_large:
            return False
        test = self.capacity_tests.get(group)
        if test is None:
            test = self.capacity_tests[group] = self.test_for(group)
        if test(job_class.amounts):
            return True
        self._too_large.add(request)
        return False

    def revisit(self, job_class: JobClass) -> None:
        """Offer the new head of a class after its head started."""
        self.capacity_tests.clear()
        if job_class.entries:
            insort(self._entries, (job_class.indexed_key, job_class), self._next_index)

    def mark_blocked(self, job_class: JobClass) -> None:
        """Note that the head of a class did not fit."""
        self.capacity_tests.clear()
        if job_class.group is None:
            self._blocked.add(job_class)

    def blocked_before(self, test_for: CapacityTestFor) -> Iterator[tuple[Job, JobClass]]:
        """Yield the heads passed over since the last call, if overdue or if the test holds."""
        after, self._queried = self._queried, self.position
        for job, job_class in heads_between(
            self.pending, self.jobs, test_for, self.position, after
        ):
            if job_class.group is not None or job_class in self._blocked:
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
        group = job_class.group
        if group is not None and not job_class.is_overdue:
            test = tests.get(group)
            if test is None:
                test = tests[group] = test_for(group)
            if not test(job_class.amounts):
                continue
        yield jobs[job_class.head], job_class
