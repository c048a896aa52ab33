"""Things that wait, by what they need of a machine's GPUs; those of one need as they stand."""

from __future__ import annotations

from typing import Generic, TypeVar

from stoker.core.policy.rows import Rows
from stoker.core.policy.shelf import Place

_T = TypeVar("_T")


class Needs(Generic[_T]):
    """A line for each need."""

    def __init__(self) -> None:
        self.lines: dict[int, Rows[Place]] = {}
        self._things: dict[Place, _T] = {}
        self._earliest: Place | None = None
        """If it is known."""

    def put(self, need: int, place: Place, thing: _T) -> None:
        """Add a thing; no two have the same place."""
        line = self.lines.get(need)
        if line is None:
            line = self.lines[need] = Rows()
        line.add(place)
        self._things[place] = thing
        if self._earliest is not None and place < self._earliest:
            self._earliest = place

    def take(self, need: int, place: Place) -> None:
        """Remove a thing."""
        line = self.lines[need]
        line.remove(place)
        del self._things[place]
        if place == self._earliest:
            self._earliest = None
        if not line:
            del self.lines[need]

    def after(self, need: int, place: Place) -> tuple[Place, _T] | None:
        """The next in a line behind a place."""
        line = self.lines.get(need)
        found = line.after(place) if line is not None else None
        return (found, self._things[found]) if found is not None else None

    def earliest(self) -> Place | None:
        """The first place of all."""
        if self._earliest is None:
            firsts = [line.first() for line in self.lines.values()]
            self._earliest = min([place for place in firsts if place is not None], default=None)
        return self._earliest
