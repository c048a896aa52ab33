"""Sorted list in blocks: a change moves the rows of one block only."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

BLOCK_SIZE = 512
"""Rows in half a block: a block is split when it has more than twice as many."""

_R = TypeVar("_R", bound=tuple[Any, ...])


class SortedList(Generic[_R]):
    """Distinct rows in ascending order.

    Invariant: no block is empty, and `_last_rows` has the last row of each block.
    Cost: O(log n + BLOCK_SIZE) per change.
    """

    __slots__ = ("_blocks", "_last_rows")

    def __init__(self) -> None:
        self._blocks: list[list[_R]] = []
        self._last_rows: list[_R] = []

    def add(self, row: _R) -> None:
        """Insert a row that is not in the list."""
        if not self._blocks:
            self._blocks.append([row])
            self._last_rows.append(row)
            return
        index = min(bisect_left(self._last_rows, row), len(self._blocks) - 1)
        block = self._blocks[index]
        insort(block, row)
        if len(block) > 2 * BLOCK_SIZE:
            self._blocks.insert(index + 1, block[BLOCK_SIZE:])
            self._last_rows.insert(index, block[BLOCK_SIZE - 1])
            del block[BLOCK_SIZE:]
            index += 1
        self._last_rows[index] = self._blocks[index][-1]

    def remove(self, row: _R) -> None:
        """Remove a row that is in the list."""
        index = bisect_left(self._last_rows, row)
        block = self._blocks[index]
        offset = bisect_left(block, row)
        if block[offset] != row:
            raise KeyError(row)
        del block[offset]
        if block:
            self._last_rows[index] = block[-1]
        else:
            del self._blocks[index], self._last_rows[index]

    def iter_after(self, row: tuple[Any, ...]) -> Iterator[_R]:
        """Yield the rows greater than this one in order. The list must not change meanwhile."""
        index = bisect_right(self._last_rows, row)
        for block in self._blocks[index:]:
            start = bisect_right(block, row) if block is self._blocks[index] else 0
            yield from block[start:]

    def first(self) -> _R | None:
        """Return the smallest row."""
        return self._blocks[0][0] if self._blocks else None

    def last(self) -> _R | None:
        """Return the greatest row."""
        return self._last_rows[-1] if self._last_rows else None

    def __iter__(self) -> Iterator[_R]:
        """Yield the rows in ascending order; the list must not change meanwhile."""
        for block in self._blocks:
            yield from block

    def __reversed__(self) -> Iterator[_R]:
        """Yield the rows in descending order; the list must not change meanwhile."""
        for block in reversed(self._blocks):
            yield from reversed(block)

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def __bool__(self) -> bool:
        return bool(self._blocks)
