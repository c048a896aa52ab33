"""Who goes first: ready jobs in classes of equal request, looked at by their heads only."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from stoker.core.job import Job
from stoker.core.request import Request

Key = tuple[Request | None, int, str, int, int | None]
"""Request, priority, queue, the throttled array it belongs to (0: none), and time limit.

No request and no limit in a queue of strict order, where only the head counts anyway.

The time limit, since a short job may fit into a gap that is closed to a long one before it.
"""


class JobClass:
    """Ready jobs that are interchangeable to the planner, but for their order."""

    __slots__ = ("array", "heap", "key", "priority", "queue", "request")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.request, self.priority, self.queue, self.array, _ = key
        self.heap: list[tuple[int, int]] = []


class ReadyLine:
    """Everything that could start if there were room."""

    def __init__(self) -> None:
        self.classes: dict[Key, JobClass] = {}
        self.where: dict[int, JobClass] = {}
        self.stirred = False
        """Whether something has changed since the last plan that could let a job start."""
        self._first: Job | None = None

    def __len__(self) -> int:
        return len(self.where)

    def __contains__(self, job: int) -> bool:
        return job in self.where

    def first(self, jobs: dict[int, Job], stopped: Callable[[JobClass], object]) -> Job | None:
        """The head of the whole line, but for classes that are stopped by a limit.

        Asked for every row of a list, so it is kept until something changes.
        """
        if self._first is None or self._first.id not in self.where:
            classes = [found for found in list(self.classes.values()) if not stopped(found)]
            heads = [self.head(found, jobs) for found in classes]
            known = [job for job in heads if job is not None]
            self._first = min(known, key=lambda job: (-job.priority, job.order), default=None)
        return self._first

    def look_again(self) -> None:
        """Limits may let others go first now."""
        self._first = None

    def add(self, job: Job, key: Key) -> None:
        """A job became ready."""
        self._first = None
        found = self.classes.get(key)
        if found is None:
            found = self.classes[key] = JobClass(key)
        self.where[job.id] = found
        self.stirred = True
        heappush(found.heap, (job.order, job.id))

    def remove(self, job: Job) -> None:
        """A job is not ready any more; its heap entry is dropped when it comes up."""
        self.where.pop(job.id, None)

    def head(self, found: JobClass, jobs: dict[int, Job]) -> Job | None:
        """The first of a class, or None when the class has emptied (and is dropped)."""
        heap = found.heap
        while heap:
            order, id = heap[0]
            if self.where.get(id) is found:
                job = jobs[id]
                if job.order == order:
                    return job
            heappop(heap)
        if self.classes.get(found.key) is found:
            del self.classes[found.key]
        return None


class Walk:
    """One pass over the line: the best head first, the rest of its class behind it."""

    def __init__(self, line: ReadyLine, jobs: dict[int, Job]) -> None:
        self.line, self.jobs = line, jobs
        self.heap: list[tuple[int, int, int, JobClass]] = []
        for found in list(line.classes.values()):
            self._enter(found, self.heap.append)
        heapify(self.heap)

    def _enter(
        self, found: JobClass, put: Callable[[tuple[int, int, int, JobClass]], None]
    ) -> None:
        job = self.line.head(found, self.jobs)
        if job is not None:
            put((-found.priority, job.order, job.id, found))

    def next(self) -> tuple[Job, JobClass] | None:
        """The next candidate; its class is out of the walk until `again`."""
        if not self.heap:
            return None
        _, _, id, found = heappop(self.heap)
        return self.jobs[id], found

    def again(self, found: JobClass) -> None:
        """A job of this class was started: look at the next one."""
        self._enter(found, lambda entry: heappush(self.heap, entry))


def in_order(line: ReadyLine, jobs: dict[int, Job], most: int) -> list[Job]:
    """The first ready jobs in the order in which they are considered."""
    first: list[tuple[int, int, int]] = []
    for found in line.classes.values():
        heap, taken = found.heap.copy(), 0
        while heap and taken < most:
            order, id = heappop(heap)
            if line.where.get(id) is found and jobs[id].order == order:
                first.append((-found.priority, order, id))
                taken += 1
    first = sorted(set(first))[:most]
    return [jobs[id] for _, _, id in first]
