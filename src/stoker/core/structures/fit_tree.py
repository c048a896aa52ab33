"""Tree over entries with a sort key and amounts: finds the first entry in order that fits.

A B-tree in Z-order of the amounts (Morton 1966), so that entries with similar amounts share a
node. Every node knows the componentwise minimum of its amounts and its smallest sort key. The
search is best-first by sort key and does not enter nodes with a minimum that does not fit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from operator import eq
from typing import Generic, TypeVar

SortKey = tuple[float, ...]
"""Position in the scheduling order; smaller is earlier."""
Amounts = tuple[float, ...]
"""Amount per resource type, requested or available."""
BEFORE_ALL: SortKey = (float("-inf"),)
"""Smaller than every sort key."""

NODE_WIDTH = 12
"""Keys in half a node: a node is split when it has more than twice as many."""

_T = TypeVar("_T")
_Entry = tuple[SortKey, Amounts, _T]


def fits_within(requested: Amounts, available: Amounts) -> bool:
    """Whether every requested amount is available; surplus components are ignored."""
    for want, have in zip(requested, available, strict=False):  # noqa: SIM110 - all() is twice as slow
        if want > have:
            return False
    return True


CapacityTest = Callable[[Amounts], bool]
"""Whether amounts are available. Invariant: if so, then all smaller amounts are too."""


def at_most(available: Amounts) -> CapacityTest:
    """Return the test for one vector of available amounts; unrolled, as it is called most."""
    match available:
        case (first,):
            return lambda requested: requested[0] <= first
        case (first, second):
            return lambda requested: requested[0] <= first and requested[1] <= second
        case (first, second, third):
            return lambda requested: (
                requested[0] <= first and requested[1] <= second and requested[2] <= third
            )
        case _:
            return lambda requested: fits_within(requested, available)


def at_most_any(alternatives: Iterable[Amounts]) -> CapacityTest:
    """Return the test whether one of several vectors of available amounts suffices."""
    vectors = tuple(alternatives)
    if not vectors:
        return lambda requested: False
    if len(vectors) == 1:
        return at_most(vectors[0])
    within_bounds = at_most(tuple(map(max, *vectors)))
    return lambda requested: (
        within_bounds(requested) and any(fits_within(requested, vector) for vector in vectors)
    )


# ----------------------------------------------------------------- Z-order

Z_ORDER_STEPS = 2048
"""Steps of the logarithmic scale of amounts, 32 per doubling: up to 2**60 without overflow."""


def _z_step(amount: float) -> int:
    """Return the step of an amount on the scale."""
    if amount > 1 << 60:
        return Z_ORDER_STEPS - 1
    whole = int(amount)
    shift = max(whole.bit_length() - 6, 0)
    return min((whole >> shift) + 32 * shift, Z_ORDER_STEPS - 1)


def _spread_bits(dimensions: int) -> list[int]:
    """Return each step with its bits spread, so that the bits of all dimensions interleave."""
    return [
        sum((step >> bit & 1) << bit * dimensions for bit in range(Z_ORDER_STEPS.bit_length()))
        for step in range(Z_ORDER_STEPS)
    ]


_SPREAD_TABLES: dict[int, list[int]] = {}


def z_order(amounts: Amounts) -> int:
    """Return the interleaved bits of all amounts: close for similar amounts."""
    dimensions = len(amounts)
    spread = _SPREAD_TABLES.get(dimensions)
    if spread is None:
        spread = _SPREAD_TABLES[dimensions] = _spread_bits(dimensions)
    code = 0
    for dimension, amount in enumerate(amounts):
        code |= spread[_z_step(amount)] << dimension
    return code


# ----------------------------------------------------------------- tree

_Key = tuple[int, SortKey]


class _Node(Generic[_T]):
    """A node of the tree: a leaf has entries, an inner node has children, both sorted by `keys`."""

    __slots__ = ("children", "entries", "keys", "leaf", "min_amounts", "min_key")

    def __init__(self, leaf: bool) -> None:
        self.leaf = leaf
        self.keys: list[_Key] = []
        self.children: list[_Node[_T]] = []
        self.entries: list[_Entry[_T]] = []
        self.min_amounts: Amounts = ()
        """Componentwise minimum of the amounts below this node."""
        self.min_key: SortKey = BEFORE_ALL
        """Smallest sort key below this node."""

    def put(self, key: _Key, entry: _Entry[_T]) -> _Node[_T] | None:
        """Insert an entry; return the second half of this node if it was split."""
        self.min_amounts = tuple(map(min, self.min_amounts, entry[1])) if self.keys else entry[1]
        self.min_key = min(self.min_key, entry[0]) if self.keys else entry[0]
        if self.leaf:
            index = bisect_left(self.keys, key)
            self.keys.insert(index, key)
            self.entries.insert(index, entry)
        else:
            index = max(bisect_right(self.keys, key) - 1, 0)
            sibling = self.children[index].put(key, entry)
            if sibling is not None:
                self.keys.insert(index + 1, sibling.keys[0])
                self.children.insert(index + 1, sibling)
        return self._split() if len(self.keys) > 2 * NODE_WIDTH else None

    def take(self, key: _Key) -> _Entry[_T]:
        """Remove and return the entry with this key."""
        if self.leaf:
            index = bisect_left(self.keys, key)
            if index == len(self.keys) or self.keys[index] != key:
                raise KeyError(key)
            entry = self.entries.pop(index)
            del self.keys[index]
        else:
            index = max(bisect_right(self.keys, key) - 1, 0)
            entry = self.children[index].take(key)
            if not self.children[index].keys:
                del self.keys[index], self.children[index]
        if entry[0] == self.min_key or any(map(eq, entry[1], self.min_amounts)):
            self.update_summary()
        return entry

    def _split(self) -> _Node[_T]:
        half: _Node[_T] = _Node(self.leaf)
        middle = len(self.keys) // 2
        half.keys, self.keys = self.keys[middle:], self.keys[:middle]
        half.children, self.children = self.children[middle:], self.children[:middle]
        half.entries, self.entries = self.entries[middle:], self.entries[:middle]
        self.update_summary()
        half.update_summary()
        return half

    def update_summary(self) -> None:
        """Recompute `min_amounts` and `min_key`."""
        if self.keys:
            amounts = [entry[1] for entry in self.entries] or [
                node.min_amounts for node in self.children
            ]
            keys = [entry[0] for entry in self.entries] or [node.min_key for node in self.children]
            self.min_amounts, self.min_key = tuple(map(min, *amounts, amounts[0])), min(keys)


class FitTree(Generic[_T]):
    """Entries (sort key, amounts, value), searched by order and by capacity.

    Invariant: sort keys are distinct.
    Cost: O(log n) per change; a search visits only nodes that may have a fitting entry.
    """

    def __init__(self) -> None:
        self._root: _Node[_T] = _Node(leaf=True)

    def add(self, key: SortKey, amounts: Amounts, value: _T) -> None:
        """Insert a value under a sort key that is not used yet."""
        sibling = self._root.put((z_order(amounts), key), (key, amounts, value))
        if sibling is not None:
            root: _Node[_T] = _Node(leaf=False)
            root.keys, root.children = [self._root.keys[0], sibling.keys[0]], [self._root, sibling]
            root.update_summary()
            self._root = root

    def remove(self, key: SortKey, amounts: Amounts) -> None:
        """Remove the entry with this sort key and these amounts."""
        self._root.take((z_order(amounts), key))
        while not self._root.leaf and len(self._root.children) <= 1:
            self._root = self._root.children[0] if self._root.children else _Node(leaf=True)

    def first_fitting(self, after: SortKey, fits: CapacityTest) -> _Entry[_T] | None:
        """Return the first entry after a sort key with amounts that pass the test."""
        best: _Entry[_T] | None = None
        branches = [(self._root.min_key, 0, self._root)]
        count = 0
        while branches and (best is None or branches[0][0] < best[0]):
            _, _, node = heappop(branches)
            for entry in node.entries:
                key = entry[0]
                if (best is None or key < best[0]) and after < key and fits(entry[1]):
                    best = entry
            for branch in node.children:
                if (best is None or branch.min_key < best[0]) and fits(branch.min_amounts):
                    count += 1
                    heappush(branches, (branch.min_key, count, branch))
        return best

    def any_fitting(self, fits: CapacityTest) -> Iterator[_T]:
        """Yield lazily the values with amounts that pass the test, in any order."""
        branches = [self._root]
        while branches:
            node = branches.pop()
            for _, amounts, value in node.entries:
                if fits(amounts):
                    yield value
            branches += [branch for branch in node.children if fits(branch.min_amounts)]

    def __bool__(self) -> bool:
        return bool(self._root.keys)
