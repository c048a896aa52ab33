"""When those who run are over at the latest, in order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator


class Ends:
    """Running jobs by their latest end, on the boot clock."""

    def __init__(self) -> None:
        self._sorted: list[tuple[float, int]] = []
        self._end: dict[int, float] = {}

    def put(self, job: int, end: float) -> None:
        """Enter a job, or move it."""
        if self._end.get(job) != end:
            self.drop(job)
            self._end[job] = end
            insort(self._sorted, (end, job))

    def drop(self, job: int) -> None:
        """It holds nothing any more."""
        end = self._end.pop(job, None)
        if end is not None:
            del self._sorted[bisect_left(self._sorted, (end, job))]

    def __iter__(self) -> Iterator[tuple[float, int]]:
        """The first to end first."""
        return iter(self._sorted)
