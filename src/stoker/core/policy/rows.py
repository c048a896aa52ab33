"""Rows in order, of which one is added or taken away at a time, however many there are.

They stand in parts of some hundred each, so that no change moves more than one part.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

SIZE = 512
"""Half of what a part holds at most; when it has more it is split."""

_R = TypeVar("_R", bound=tuple[Any, ...])


class Rows(Generic[_R]):
    """Rows in order; no two are equal."""

    __slots__ = ("_lasts", "_parts")

    def __init__(self) -> None:
        self._parts: list[list[_R]] = []
        self._lasts: list[_R] = []
        """The last row of each part."""

    def add(self, row: _R) -> None:
        """Put a row where it belongs."""
        if not self._parts:
            self._parts.append([row])
            self._lasts.append(row)
            return
        at = min(bisect_left(self._lasts, row), len(self._parts) - 1)
        part = self._parts[at]
        insort(part, row)
        if len(part) > 2 * SIZE:
            self._parts.insert(at + 1, part[SIZE:])
            self._lasts.insert(at, part[SIZE - 1])
            del part[SIZE:]
            at += 1
        self._lasts[at] = self._parts[at][-1]

    def remove(self, row: _R) -> None:
        """Take a row away that is there."""
        at = bisect_left(self._lasts, row)
        part = self._parts[at]
        here = bisect_left(part, row)
        if part[here] != row:
            raise KeyError(row)
        del part[here]
        if part:
            self._lasts[at] = part[-1]
        else:
            del self._parts[at], self._lasts[at]

    def after(self, row: tuple[Any, ...]) -> _R | None:
        """The first row behind this one, which need not be there itself."""
        at = bisect_right(self._lasts, row)
        if at == len(self._parts):
            return None
        part = self._parts[at]
        return part[bisect_right(part, row)]

    def before(self, row: tuple[Any, ...]) -> bool:
        """Whether one stands before this, which need not be there itself."""
        return bool(self._parts) and self._parts[0][0] < row

    def first(self) -> _R | None:
        """The first of all."""
        return self._parts[0][0] if self._parts else None

    def last(self) -> _R | None:
        """The last of all."""
        return self._lasts[-1] if self._lasts else None

    def __iter__(self) -> Iterator[_R]:
        """From the first to the last. Nothing may change meanwhile."""
        for part in self._parts:
            yield from part

    def __reversed__(self) -> Iterator[_R]:
        """From the last to the first. Nothing may change meanwhile."""
        for part in reversed(self._parts):
            yield from reversed(part)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __bool__(self) -> bool:
        return bool(self._parts)
