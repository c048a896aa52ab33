"""Grid: all combinations of parameters by index, in order or shuffled, computed lazily."""

from __future__ import annotations

from stoker.compat.simple_hypersearch.permutation import Permutation, shuffled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GRID = "grid"
SHUFFLED_GRID = "shuffled_grid"
MODES = (SHUFFLED_GRID, GRID)
EXACT_UP_TO = 1_000_000
"""The largest grid that is shuffled as a list; larger ones use a Permutation."""


class Grid:
    """The product of the parameters' values; the last parameter changes fastest."""

    __slots__ = ("_fastest_first", "names", "size", "values")

    def __init__(self, names: Sequence[str], values: Sequence[Sequence[object]]) -> None:
        self.names = tuple(names)
        self.values = tuple(map(tuple, values))
        self._fastest_first = [(choices, len(choices)) for choices in reversed(self.values)]
        self.size = 1
        for _, count in self._fastest_first:
            self.size *= count

    def __getitem__(self, index: int) -> tuple[object, ...]:
        """Return one combination, its values in the order of the names."""
        if not 0 <= index < self.size:
            raise IndexError(index)
        chosen = []
        for choices, count in self._fastest_first:
            index, choice = divmod(index, count)
            chosen.append(choices[choice])
        chosen.reverse()
        return tuple(chosen)


def order(
    grid: Grid, mode: str = SHUFFLED_GRID, seed: int | None = None, count: int | None = None
) -> Iterator[tuple[object, ...]]:
    """Yield `count` different combinations (all, if None); the same for the same seed."""
    indexes = range(grid.size if count is None else min(count, grid.size))
    if not indexes:
        return
    if mode == GRID:
        yield from map(grid.__getitem__, indexes)
    else:
        yield from map(grid.__getitem__, map(_places(grid.size, seed).__getitem__, indexes))


def _places(size: int, seed: int | None) -> list[int] | Permutation:
    if seed is None:
        from os import urandom

        seed = int.from_bytes(urandom(16))
    return shuffled(size, seed) if size <= EXACT_UP_TO else Permutation(size, seed)
