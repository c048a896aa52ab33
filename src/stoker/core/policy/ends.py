"""When those who run are over at the latest, in order."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.core.policy.rows import Rows


class Ends:
    """Running jobs by their latest end, on the boot clock."""

    def __init__(self) -> None:
        self._rows: Rows[tuple[float, int]] = Rows()
        self._end: dict[int, float] = {}

    def put(self, job: int, end: float) -> None:
        """Enter a job, or move it."""
        if self._end.get(job) != end:
            self.drop(job)
            self._end[job] = end
            self._rows.add((end, job))

    def drop(self, job: int) -> None:
        """It holds nothing any more."""
        end = self._end.pop(job, None)
        if end is not None:
            self._rows.remove((end, job))

    def __iter__(self) -> Iterator[tuple[float, int]]:
        """The first to end first."""
        return iter(self._rows)
