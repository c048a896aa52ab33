"""Running jobs that can make room, by who does so first."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

Seat = tuple[int, float, float, int]
"""Minus its priority, where its policy puts it, when it started, and the id: the largest makes
room first."""


class Victims:
    """Those who can stop and go on later, in the order of their places."""

    def __init__(self) -> None:
        self._seats: list[Seat] = []
        self._seat: dict[int, Seat] = {}
        self._until: dict[int, float] = {}

    def put(self, job: int, priority: int, level: float, started: float, until: float) -> None:
        """Enter a job, or move it. From that moment on it may stand further in front."""
        self._until[job] = until
        seat = (-priority, level, started, job)
        before = self._seat.get(job)
        if before == seat:
            return
        if before is not None:
            del self._seats[bisect_left(self._seats, before)]
        insort(self._seats, seat)
        self._seat[job] = seat

    def holds(self, job: int, at: float) -> bool:
        """Whether it stands where it should at this moment."""
        return at < self._until[job]

    def seat(self, job: int) -> Seat:
        """Where a job stands."""
        return self._seat[job]

    def level(self, job: int) -> float:
        """Where its policy puts a job."""
        return self._seat[job][1]

    def drop(self, job: int) -> None:
        """It does not run any more."""
        seat = self._seat.pop(job, None)
        self._until.pop(job, None)
        if seat is not None:
            del self._seats[bisect_left(self._seats, seat)]

    def worst_first(self) -> Iterator[Seat]:
        """Those who make room first, first. Whoever is moved forward meanwhile comes again."""
        seats, at = self._seats, len(self._seats) - 1
        while at >= 0:
            seat = seats[at]
            yield seat
            if at >= len(seats) or seats[at] == seat:
                at -= 1

    def __len__(self) -> int:
        return len(self._seats)

    def __contains__(self, job: int) -> bool:
        return job in self._seat
