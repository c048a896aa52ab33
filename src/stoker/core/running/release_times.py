"""Release times: when running jobs free their devices, at the latest or as estimated, in order."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from math import inf

from stoker.core.model.hardware import Placement
from stoker.core.structures.sorted_list import remove_sorted

Release = tuple[float, Placement]
"""Latest end of a running job, and the placement it frees then."""
KILL_GRACE_SECONDS = 10.0
"""Seconds a job may take to end after its time limit, before it is killed."""


class ReleaseTimes:
    """Running jobs by their latest end, on the boot clock.

    Derived from: time limits, measured epochs, stop requests, ends of nodes.
    Invalidated by: changes of these; `state.timers.arm_timers` sets the new time.
    """

    def __init__(self) -> None:
        self._sorted: list[tuple[float, int]] = []
        self._end: dict[int, float] = {}

    def set(self, job: int, end: float) -> None:
        """Add a job or move it."""
        if self._end.get(job) != end:
            self.remove(job)
            self._end[job] = end
            insort(self._sorted, (end, job))

    def remove(self, job: int) -> None:
        """Remove a job, if it is present."""
        end = self._end.pop(job, None)
        if end is not None:
            remove_sorted(self._sorted, (end, job))

    def __iter__(self) -> Iterator[tuple[float, int]]:
        """Yield end and id, the earliest end first."""
        return iter(self._sorted)


def latest_end(started: float | None, limit: int | None, slack: float) -> float:
    """Return the boot-clock time by which an attempt has ended for certain."""
    if started is None or limit is None:
        return inf
    return started + limit + slack + KILL_GRACE_SECONDS
