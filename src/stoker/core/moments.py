"""When to look at each of many jobs again: the next moment is found without looking at all."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import inf


class Moments:
    """One moment per job; one that was put off leaves an entry behind that does not count."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._moment: dict[int, float] = {}

    def put(self, job: int, moment: float) -> None:
        """From now on, this moment counts; infinite: none."""
        if moment == inf:
            self._moment.pop(job, None)
        elif self._moment.get(job) != moment:
            self._moment[job] = moment
            heappush(self._heap, (moment, job))

    def drop(self, job: int) -> None:
        """Do not look at it any more."""
        self._moment.pop(job, None)

    def of(self, job: int) -> float:
        """When to look at a job; infinite: never."""
        return self._moment.get(job, inf)

    def first(self) -> tuple[float, int] | None:
        """The next moment, and whose it is."""
        heap, moment = self._heap, self._moment
        while heap and moment.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0] if heap else None

    def due(self, at: float) -> Iterator[int]:
        """Those whose moment has come, one after the other; each is dropped."""
        while (first := self.first()) is not None and first[0] <= at:
            heappop(self._heap)
            del self._moment[first[1]]
            yield first[1]

    def not_before(self, at: float) -> None:
        """Move all earlier moments to this one."""
        self._moment = {job: max(moment, at) for job, moment in self._moment.items()}
        self._heap = [(moment, job) for job, moment in self._moment.items()]
        heapify(self._heap)
