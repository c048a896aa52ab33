"""One pass over the line: who may start now, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush

from stoker.core.job import Job
from stoker.core.policy.order import Group, JobClass, ReadyLine
from stoker.core.policy.shelf import START, Amounts, Enough, Place

Ways = Callable[[Group], Enough]
"""What there is for the jobs of a group: whether so much, with such a time limit."""
Turn = tuple[Place, Amounts, JobClass]


class Walk:
    """One pass over the line, in order: single classes, and of each group those that could fit.

    What there is becomes less during a pass, never more. So whoever did not fit is passed over for
    good, and who comes next in a group needs to be known only when it is the group's turn.
    """

    def __init__(
        self,
        line: ReadyLine,
        jobs: dict[int, Job],
        ways: Ways,
        fresh: Iterable[JobClass] = (),
        near: Callable[[Group], Enough | None] = lambda group: None,
        no_news: Callable[[Group], bool] = lambda group: False,
    ) -> None:
        """`fresh`: classes for which there may be more than `ways` says.

        `near`: the same as `ways`, if of a few classes those are left out that have not enough.
        `no_news`: whether all others of a group are known to have no room.
        """
        self.line, self.jobs, self.ways, self.near = line, jobs, ways, near
        self.known: dict[Group, Enough] = {}
        """What there is for each group, until something is taken."""
        self.at: Place = START
        self.fresh = set(fresh)
        self._unfit: list[Turn] = []
        self._left_out: list[JobClass] = []
        self.turns: list[Turn] = []
        self._enter_singles()
        heapify(self.turns)
        for group in line.groups.values():
            if not no_news(group):
                self._look(group)
        self._last: Group | None = None
        self._asked: Place = START

    def _enter_singles(self) -> None:
        turns, fresh = self.turns, self.fresh
        for kind in self.line.few.values():
            enough = self.near(kind)
            for each in kind.few:
                if enough is None or each in fresh or enough(each.amounts):
                    turns.append((each.place, (), each))
                else:
                    self._left_out.append(each)
        turns += [(each.place, (), each) for each in self.line.alone.values()]
        turns += [(each.place, (), each) for each in fresh if each.group is not None]

    def next(self) -> tuple[Job, JobClass] | None:
        """The next candidate; of a single class no other comes, unless `again` is said."""
        if self._last is not None:
            self._look(self._last)
            self._last = None
        while self.turns:
            place, asked, found = heappop(self.turns)
            group = found.group if asked else None
            stands = found.heap and found.place == place
            if group is not None and not (stands and self._there(group)(asked)):
                self._look(group)  # somebody before it took what it would have needed
                continue
            if not stands:
                continue
            self.at, self._last = place, group
            return self.jobs[found.heap[0][2]], found
        return None

    def again(self, found: JobClass) -> None:
        """A job of this class was started: look at the next one."""
        self.known.clear()
        if found.heap and (found.group is None or found in self.fresh):
            heappush(self.turns, (found.place, (), found))

    def unfit(self, found: JobClass) -> None:
        """There was no room for the head of this class."""
        self.known.clear()
        if found.group is None:
            self._unfit.append((found.place, (), found))

    def passed(self, ways: Ways) -> Iterator[tuple[Job, JobClass]]:
        """Who had no room since this was last asked, in order; of a group, if this is enough.

        Those of a group who are overdue in any case.
        """
        after, self._asked = self._asked, self.at
        turns = self._unfit
        turns += [(each.place, (), each) for each in self._left_out]
        self._left_out.clear()
        yield from _between(self.line, self.jobs, turns, after, self.at, ways)
        self._unfit = [turn for turn in turns if not turn[1]]

    def _look(self, group: Group) -> None:
        _enter(self.turns, group.shelf.first(self.at, self._there(group)))

    def _there(self, group: Group) -> Enough:
        found = self.known.get(group)
        if found is None:
            found = self.known[group] = self.ways(group)
        return found


def before(
    line: ReadyLine, jobs: dict[int, Job], end: Place, ways: Ways
) -> Iterator[tuple[Job, JobClass]]:
    """The heads of all classes that stand before a place, in order; of a group, if this is enough.

    Those of a group who are overdue in any case.
    """
    turns: list[Turn] = [
        (each.place, (), each) for each in line.single.values() if each.place < end
    ]  # fmt: skip
    return _between(line, jobs, turns, START, end, ways)


def _between(
    line: ReadyLine, jobs: dict[int, Job], turns: list[Turn], after: Place, end: Place, ways: Ways
) -> Iterator[tuple[Job, JobClass]]:
    """These, and those of the groups."""
    heapify(turns)
    for group in line.groups.values():
        if group.shelf.earliest < end:
            _enter(turns, group.shelf.first(after, ways(group)))
    for found in line.overdue.values():
        if found.group is not None and after < found.place < end:
            heappush(turns, (found.place, (), found))
    while turns and turns[0][0] < end:
        place, asked, found = heappop(turns)
        if not found.heap or found.place != place:
            continue
        yield jobs[found.heap[0][2]], found
        if asked and found.group is not None:
            _enter(turns, found.group.shelf.first(place, ways(found.group)))


def _enter(turns: list[Turn], turn: Turn | None) -> None:
    if turn is not None:
        heappush(turns, turn)
