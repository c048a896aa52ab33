"""Things that wait, each with its place in line and what it asks for.

Finds the first in line that is content with what is there, without looking at everybody: things
that ask for similar amounts stand together in a tree, and every branch knows the least that
anything in it asks for, and the first place in line that anything in it has. Branches that ask
for too much are never entered, and of the others those that could hold an earlier one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from operator import eq
from typing import Generic, TypeVar

Place = tuple[float, ...]
"""Where something stands in line; smaller is earlier."""
Amounts = tuple[float, ...]
"""What something asks for, or what there is, kind by kind."""
START: Place = (float("-inf"),)
"""Before everything."""

WIDTH = 12
"""Half of what a node holds at most; when it has more it is split."""

_T = TypeVar("_T")
_Thing = tuple[Place, Amounts, _T]


def content(asked: Amounts, there: Amounts) -> bool:
    """Whether what is there is enough, in every kind; what else is asked for does not count."""
    for want, have in zip(asked, there, strict=False):  # noqa: SIM110 - all() takes twice as long
        if want > have:
            return False
    return True


Enough = Callable[[Amounts], bool]
"""Whether there is so much; then there is also any lesser amount."""


def within(there: Amounts) -> Enough:
    """Enough, if no more is asked for than this. Asked very often, so of few kinds at once."""
    match there:
        case (one,):
            return lambda asked: asked[0] <= one
        case (one, two):
            return lambda asked: asked[0] <= one and asked[1] <= two
        case (one, two, three):
            return lambda asked: asked[0] <= one and asked[1] <= two and asked[2] <= three
        case _:
            return lambda asked: content(asked, there)


def within_any(ways: Iterable[Amounts]) -> Enough:
    """Enough, if no more is asked for than one of these."""
    known = tuple(ways)
    if not known:
        return lambda asked: False
    if len(known) == 1:
        return within(known[0])
    at_most = within(tuple(map(max, *known)))
    return lambda asked: at_most(asked) and any(content(asked, way) for way in known)


# ----------------------------------------------------------------- who stands beside whom

STEPS = 2048
"""A scale of amounts, 32 steps to the doubling: from nothing to more than anybody has."""


def step(amount: float) -> int:
    """Where an amount is on the scale."""
    if amount > 1 << 60:
        return STEPS - 1
    whole = int(amount)
    shift = max(whole.bit_length() - 6, 0)
    return min((whole >> shift) + 32 * shift, STEPS - 1)


def _spread(kinds: int) -> list[int]:
    """For every step its bits, so far apart that those of all kinds fit between each other."""
    return [
        sum((number >> bit & 1) << bit * kinds for bit in range(STEPS.bit_length()))
        for number in range(STEPS)
    ]


_SPREADS: dict[int, list[int]] = {}


def neighbourhood(amounts: Amounts) -> int:
    """A number that is similar for similar amounts: the bits of all of them in turn (Z-order)."""
    kinds = len(amounts)
    spread = _SPREADS.get(kinds)
    if spread is None:
        spread = _SPREADS[kinds] = _spread(kinds)
    found = 0
    for kind, amount in enumerate(amounts):
        found |= spread[step(amount)] << kind
    return found


# ------------------------------------------------------------------------------- the tree

_Key = tuple[int, Place]


class _Node(Generic[_T]):
    """A branch: leaves hold things, inner nodes hold nodes; `keys` says where each begins."""

    __slots__ = ("below", "first", "keys", "leaf", "least", "things")

    def __init__(self, leaf: bool) -> None:
        self.leaf = leaf
        self.keys: list[_Key] = []
        self.below: list[_Node[_T]] = []
        self.things: list[_Thing[_T]] = []
        self.least: Amounts = ()
        """The least of each kind that anything in here asks for."""
        self.first: Place = START
        """The first place in line that anything in here has."""

    def put(self, key: _Key, thing: _Thing[_T]) -> _Node[_T] | None:
        """Add a thing; the second half of this node if it had to be split."""
        self.least = tuple(map(min, self.least, thing[1])) if self.keys else thing[1]
        self.first = min(self.first, thing[0]) if self.keys else thing[0]
        if self.leaf:
            at = bisect_left(self.keys, key)
            self.keys.insert(at, key)
            self.things.insert(at, thing)
        else:
            at = max(bisect_right(self.keys, key) - 1, 0)
            more = self.below[at].put(key, thing)
            if more is not None:
                self.keys.insert(at + 1, more.keys[0])
                self.below.insert(at + 1, more)
        return self._split() if len(self.keys) > 2 * WIDTH else None

    def take(self, key: _Key) -> _Thing[_T]:
        """Remove the thing with this key."""
        if self.leaf:
            at = bisect_left(self.keys, key)
            if at == len(self.keys) or self.keys[at] != key:
                raise KeyError(key)
            thing = self.things.pop(at)
            del self.keys[at]
        else:
            at = max(bisect_right(self.keys, key) - 1, 0)
            thing = self.below[at].take(key)
            if not self.below[at].keys:
                del self.keys[at], self.below[at]
        if thing[0] == self.first or any(map(eq, thing[1], self.least)):
            self.sum_up()
        return thing

    def _split(self) -> _Node[_T]:
        half: _Node[_T] = _Node(self.leaf)
        middle = len(self.keys) // 2
        half.keys, self.keys = self.keys[middle:], self.keys[:middle]
        half.below, self.below = self.below[middle:], self.below[:middle]
        half.things, self.things = self.things[middle:], self.things[:middle]
        self.sum_up()
        half.sum_up()
        return half

    def sum_up(self) -> None:
        """Work out anew what is asked for at least, and who is first."""
        if self.keys:
            asked = [thing[1] for thing in self.things] or [node.least for node in self.below]
            places = [thing[0] for thing in self.things] or [node.first for node in self.below]
            self.least, self.first = tuple(map(min, *asked, asked[0])), min(places)


class Shelf(Generic[_T]):
    """Things in a line, found by what they ask for."""

    def __init__(self) -> None:
        self._root: _Node[_T] = _Node(leaf=True)

    def put(self, place: Place, amounts: Amounts, thing: _T) -> None:
        """Add a thing; no two have the same place."""
        more = self._root.put((neighbourhood(amounts), place), (place, amounts, thing))
        if more is not None:
            root: _Node[_T] = _Node(leaf=False)
            root.keys, root.below = [self._root.keys[0], more.keys[0]], [self._root, more]
            root.sum_up()
            self._root = root

    def take(self, place: Place, amounts: Amounts) -> None:
        """Remove a thing."""
        self._root.take((neighbourhood(amounts), place))
        while not self._root.leaf and len(self._root.below) <= 1:
            self._root = self._root.below[0] if self._root.below else _Node(leaf=True)

    def first(self, after: Place, enough: Enough) -> _Thing[_T] | None:
        """The first in line, behind a place, for which there is enough."""
        best: _Thing[_T] | None = None
        branches = [(self._root.first, 0, self._root)]
        count = 0
        while branches and (best is None or branches[0][0] < best[0]):
            _, _, node = heappop(branches)
            for thing in node.things:
                place = thing[0]
                if (best is None or place < best[0]) and after < place and enough(thing[1]):
                    best = thing
            for branch in node.below:
                if (best is None or branch.first < best[0]) and enough(branch.least):
                    count += 1
                    heappush(branches, (branch.first, count, branch))
        return best

    def some(self, enough: Enough) -> Iterator[_T]:
        """All for which there is enough, in any order, as far as somebody asks."""
        branches = [self._root]
        while branches:
            node = branches.pop()
            for _, amounts, thing in node.things:
                if enough(amounts):
                    yield thing
            branches += [branch for branch in node.below if enough(branch.least)]

    @property
    def earliest(self) -> Place:
        """The first place that anything has, or an even earlier one."""
        return self._root.first

    def __iter__(self) -> Iterator[_T]:
        """All things as they stand in line, worked out as far as somebody asks."""
        turns: list[tuple[Place, int, _Node[_T] | None, _T | None]] = []
        count = 0
        heappush(turns, (self._root.first, count, self._root, None))
        while turns:
            _, _, node, thing = heappop(turns)
            if node is None:
                assert thing is not None
                yield thing
                continue
            for place, _, each in node.things:
                count += 1
                heappush(turns, (place, count, None, each))
            for branch in node.below:
                count += 1
                heappush(turns, (branch.first, count, branch, None))

    def __bool__(self) -> bool:
        return bool(self._root.keys)
