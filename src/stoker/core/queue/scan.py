"""Walks through the pending queue in order, which skip classes that cannot fit or do not matter."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice

from stoker.core.queue.job_class import JobClass, RequestSize, ShapeGroup
from stoker.core.queue.pending_queue import PendingQueue
from stoker.core.structures import CapacityTest, SortKey


class SizeTest:
    """Whether requests of a size may fit, by one capacity test per group."""

    def __init__(self, build: Callable[[ShapeGroup], CapacityTest]) -> None:
        self._build = build
        self._tests: dict[ShapeGroup, CapacityTest] = {}

    def __call__(self, size: RequestSize) -> bool:
        """Return False if amounts of this size do not fit; True without a group."""
        group = size.group
        if group is None:
            return True
        test = self._tests.get(group)
        if test is None:
            test = self._tests[group] = self._build(group)
        return test(size.amounts)

    def forget(self) -> None:
        """Build the tests again, since the capacity or what is tested has changed."""
        self._tests.clear()


def fitting_heads(
    pending: PendingQueue, may_fit: Callable[[RequestSize], bool]
) -> Iterator[tuple[SortKey, JobClass]]:
    """Yield the classes in the order of their heads, without sizes that do not fit.

    Capacity only shrinks meanwhile, so a size that did not fit is not tested again. A head may
    start before the next class is requested; then its class has another head.
    Cost: one test per request size; 1,000 classes of 50 sizes take about 0.1 ms.
    """
    heads = pending.first_classes()
    heapify(heads)
    while heads:
        key, job_class = heappop(heads)
        if may_fit(job_class.size):
            yield key, job_class
            order = job_class.size.order
            index = bisect_right(order, (key, job_class))
            if index < len(order):
                heappush(heads, order[index])


def jobs_in_order(
    pending: PendingQueue, is_skipped: Callable[[SortKey, JobClass], bool] = lambda *_: False
) -> Iterator[tuple[SortKey, JobClass, int]]:
    """Yield the sort key, the class and the id of pending jobs, none of which starts meanwhile.

    `is_skipped`: whether neither the job at a position nor later ones of its class are wanted.
    """
    heads = iter(pending.order.copy())
    head = next(heads, None)
    followers: list[tuple[SortKey, JobClass, Iterator[SortKey]]] = []
    while head is not None or followers:
        if head is not None and (not followers or head[0] < followers[0][0]):
            (key, job_class), keys = head, None
            head = next(heads, None)
        else:
            key, job_class, keys = heappop(followers)
        if is_skipped(key, job_class):
            continue
        yield key, job_class, int(key[-1])
        if keys is None:
            keys = map(job_class.sort_key, islice(job_class.entries, 1, None))
        following = next(keys, None)
        if following is not None:
            heappush(followers, (following, job_class, keys))
