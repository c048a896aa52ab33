"""Things that wait, by what they need of a machine's GPUs; those of one need as they stand."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Generic, TypeVar

from stoker.core.policy.shelf import Place

_T = TypeVar("_T")


class Needs(Generic[_T]):
    """A line for each need."""

    def __init__(self) -> None:
        self.lines: dict[int, list[tuple[Place, _T]]] = {}

    def put(self, need: int, place: Place, thing: _T) -> None:
        """Add a thing; no two have the same place."""
        line = self.lines.get(need)
        if line is None:
            self.lines[need] = [(place, thing)]
        else:
            insort(line, (place, thing), key=_place)

    def take(self, need: int, place: Place) -> None:
        """Remove a thing."""
        line = self.lines[need]
        del line[bisect_left(line, place, key=_place)]
        if not line:
            del self.lines[need]

    def after(self, need: int, place: Place) -> tuple[Place, _T] | None:
        """The next in a line behind a place."""
        line = self.lines.get(need, [])
        at = bisect_right(line, place, key=_place)
        return line[at] if at < len(line) else None

    def earliest(self) -> Place | None:
        """The first place of all."""
        return min([line[0][0] for line in self.lines.values()], default=None)


def _place(row: tuple[Place, _T]) -> Place:
    return row[0]
