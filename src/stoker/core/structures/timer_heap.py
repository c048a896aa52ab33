"""One timer per job in a heap with lazy deletion."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import inf


class TimerHeap:
    """The next time of each job.

    Invariant: the heap has the current time of each job; entries with another time are ignored.
    Cost: O(log n) per change, amortised.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._time: dict[int, float] = {}

    def set(self, job: int, time: float) -> None:
        """Set or replace the timer of a job; an infinite time cancels it."""
        if time == inf:
            self._time.pop(job, None)
        elif self._time.get(job) != time:
            self._time[job] = time
            heappush(self._heap, (time, job))

    def cancel(self, job: int) -> None:
        """Remove the timer of a job, if it has one."""
        self._time.pop(job, None)

    def time_of(self, job: int) -> float:
        """Return the time of a job; infinite if it has no timer."""
        return self._time.get(job, inf)

    def next_time(self) -> tuple[float, int] | None:
        """Return the earliest time and its job."""
        heap, times = self._heap, self._time
        while heap and times.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0] if heap else None

    def due(self, now: float) -> Iterator[int]:
        """Yield the jobs with timers that are due, the earliest first; the timers are removed."""
        while (first := self.next_time()) is not None and first[0] <= now:
            heappop(self._heap)
            del self._time[first[1]]
            yield first[1]

    def postpone_all(self, until: float) -> None:
        """Move all earlier timers to this time."""
        self._time = {job: max(time, until) for job, time in self._time.items()}
        self._heap = [(time, job) for job, time in self._time.items()]
        heapify(self._heap)
