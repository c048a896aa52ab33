"""Those who wait, one after the other: all of them, or those for whom others may make room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count

from stoker.core.policy.bars import Bar
from stoker.core.policy.needs import Needs
from stoker.core.policy.order import LONG_AGO, JobClass, ReadyLine
from stoker.core.policy.shelf import START, Place

Hope = Callable[[int], Bar]
"""For so many GPUs on a machine: only whoever stands before this has any hope."""
_Turn = tuple[Place, int, JobClass, Iterator[Place], Iterator[JobClass] | None]


class Heads:
    """Those who wait, in order; whoever is like one that was given up is passed over."""

    def __init__(self, line: ReadyLine) -> None:
        self.line = line
        self.given_up: set[JobClass] = set()
        self._turns: list[_Turn] = []
        self._numbers = count()
        """Two classes may have the same place: of a job that went over from one to the other."""
        self._begin()

    def _begin(self) -> None:
        for found in self.line.single.values():
            self._enter(found, None)
        for group in self.line.groups.values():
            self._enter_next(iter(group.shelf))

    def __iter__(self) -> Iterator[tuple[Place, JobClass, int]]:
        """Where each stands, its class and its id."""
        turns = self._turns
        seen: set[int] = set()
        while turns:
            place, _, found, places, others = heappop(turns)
            if others is not None:
                self._enter_next(others)
            id = int(place[-1])
            if not self.has_hope(place, found):
                continue
            if found not in self.given_up and self._stands(id, place, found):
                if id in seen:  # its class was to be looked at anew meanwhile, and came twice
                    continue
                seen.add(id)
                yield place, found, id
            following = next(places, None) if found not in self.given_up else None
            if following is not None:
                heappush(turns, (following, next(self._numbers), found, places, None))

    def _stands(self, id: int, place: Place, found: JobClass) -> bool:
        """Whether a job stands there still; it may have left, or be elsewhere in its class."""
        line = self.line
        if line.where.get(id) is not found:
            return False
        rank = line.ranks.get(id, 0.0)
        return found.stands(rank) == place[1] and (found, rank, int(place[2]), id) not in line.dead

    def has_hope(self, place: Place, found: JobClass) -> bool:
        """Whether it is worth to look at one who stands there."""
        return True

    def forget(self) -> None:
        """There may be less hope now."""

    def _enter_next(self, others: Iterator[JobClass]) -> None:
        found = next(others, None)
        if found is not None:
            self._enter(found, others)

    def _enter(self, found: JobClass, others: Iterator[JobClass] | None) -> None:
        places = found.places()
        first = next(places, None)
        if first is not None:
            heappush(self._turns, (first, next(self._numbers), found, places, others))


class HopefulHeads(Heads):
    """Only those of them who may get over a bar.

    Those who were looked at before have only what is `new` since then; those whom nobody has
    looked at as they stand now, all there is. Whoever has waited too long is always among them.
    """

    def __init__(self, line: ReadyLine, new: Hope, all: Hope | None = None) -> None:
        """Without `all`, that is the same."""
        self.all = _Kept(all or new)
        self.new = self.all if line.all_anew or all is None else _Kept(new)
        super().__init__(line)

    def forget(self) -> None:
        """Bars may be lower now."""
        self.all.clear()
        self.new.clear()

    def _begin(self) -> None:
        for found in self.line.overdue.values():
            self._enter(found, None)
        for needs, bars in ((self.line.anew, self.all), (self.line.looked, self.new)):
            for need, line in needs.lines.items():
                if line.before(bars[need]):
                    self._enter_next(_hopeful(needs, need, bars))

    def has_hope(self, place: Place, found: JobClass) -> bool:
        """Whether it is worth to look at one who stands there."""
        if place[1] <= LONG_AGO:
            return True
        return place[:2] < (self.all if found.anew else self.new)[found.need]


class _Kept(dict[int, Bar]):
    """Bars that are worked out once."""

    def __init__(self, hope: Hope) -> None:
        self.hope = hope

    def __missing__(self, need: int) -> Bar:
        bar = self[need] = self.hope(need)
        return bar


def _hopeful(needs: Needs[JobClass], need: int, bars: _Kept) -> Iterator[JobClass]:
    """Classes of one need whose heads have hope, in order, but for those who are overdue."""
    after = START
    while (row := needs.after(need, after)) is not None:
        after, found = row
        if after[:2] >= bars[need]:
            return
        if after[1] > LONG_AGO:
            yield found
