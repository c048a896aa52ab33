"""Who goes first: ready jobs in classes of equal request, looked at by their heads only."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from heapq import heappop, heappush, nsmallest
from itertools import islice
from math import inf

from stoker.core.job import Job
from stoker.core.policy.bars import need_of
from stoker.core.policy.fit import amounts, shape_of
from stoker.core.policy.ground import is_plain
from stoker.core.policy.needs import Needs
from stoker.core.policy.rank import OVERDUE
from stoker.core.policy.shelf import START, Amounts, Place, Shelf
from stoker.core.request import Request

Key = tuple[Request | None, int, str, int, int | None, str]
"""Request, priority, queue, the throttled array it belongs to (0: none), time limit and user.

No request and no limit in a queue of strict order, where only the head counts anyway.

The time limit, since a short job may fit into a gap that is closed to a long one before it. The
user, only where it counts what each has had: then all that is theirs moves at once.
"""


Entry = tuple[float, int, int]
"""Where a job stands among its like: by its policy, then by its order, then by its id."""


class JobClass:
    """Ready jobs that are interchangeable to the planner, but for their order."""

    __slots__ = (
        "amounts", "anew", "array", "group", "handicap", "heap", "key", "need", "place",
        "priority", "queue", "request",
    )  # fmt: skip

    def __init__(self, key: Key) -> None:
        self.key = key
        self.request, self.priority, self.queue, self.array, _, _ = key
        self.heap: list[Entry] = []
        """The first is always of a job that is ready."""
        self.place: Place = START
        """Where its head stands in the line; kept by the line."""
        self.need = need_of(self.request)
        self.anew = True
        """Whether it has yet to be looked at, as it stands now, if others can make room for it."""
        self.handicap = 0.0
        """By how much all of them stand further back than they would by themselves."""
        self.group: Group | None = None
        """Where it is found by what it asks for; None if only by itself."""
        self.amounts: Amounts = ()
        """What it asks for, and for how long, if that decides alone whether it has room."""
        if self.request is not None and only_amounts_count(key):
            self.amounts = (*amounts(self.request), inf if key[4] is None else key[4])

    def place_of(self, entry: Entry) -> Place:
        """Where one of them stands in the line."""
        rank, order, id = entry
        return (-self.priority, self.stands(rank), order, id)

    def stands(self, rank: float) -> float:
        """Where one of them stands; what its owner has had does not count if it is overdue."""
        return rank + self.handicap if rank > LONG_AGO else rank

    def places(self) -> Iterator[Place]:
        """Where its jobs stand, the first first, worked out as far as somebody asks.

        Some of them may have left the line.
        """
        heap = self.heap
        turns = [(heap[0], 0)] if heap else []
        while turns:
            entry, at = heappop(turns)
            yield self.place_of(entry)
            for below in range(2 * at + 1, min(2 * at + 3, len(heap))):
                heappush(turns, (heap[below], below))


LONG_AGO = OVERDUE / 2
"""Whoever stands before this has waited too long, whatever its owner has had."""
FEW = 8
"""So many classes of one kind are looked at one by one: quicker than any search."""


class Group:
    """Classes of one queue that differ in nothing but amounts, time limit and priority."""

    __slots__ = ("few", "least", "queue", "shape", "shelf")

    def __init__(self, shape: Request, queue: str) -> None:
        self.shape, self.queue = shape, queue
        self.few: list[JobClass] = []
        """All of them, as long as they are few."""
        self.least = 0
        """What those few need at least of a machine's GPUs."""
        self.shelf: Shelf[JobClass] = Shelf()
        """All of them, if they are many."""


def only_amounts_count(key: Key) -> bool:
    """Whether the amounts it asks for decide alone if a class has room."""
    request, _, _, array, _, _ = key
    if request is None or array or request.exclusive:
        return False
    if request.machines > 1:
        return is_plain(request)
    return request.gpus is None or request.gpus.share is None


class ReadyLine:
    """Everything that could start if there were room."""

    def __init__(self) -> None:
        self.classes: dict[Key, JobClass] = {}
        self.groups: dict[tuple[Request, str], Group] = {}
        self.few: dict[tuple[Request, str], Group] = {}
        """Groups of few classes."""
        self.alone: dict[Key, JobClass] = {}
        """Classes in no group at all."""
        self.single: dict[Key, JobClass] = {}
        """Classes in no group, or in one of few, each of which is looked at by itself."""
        self.queues: dict[str, int] = {}
        """How many classes there are in each queue where somebody waits."""
        self.where: dict[int, JobClass] = {}
        self.ranks: dict[int, float] = {}
        """Where its policy puts each of them; those who are not here, by their order alone."""
        self.kin: dict[tuple[str, str], dict[int, None]] = {}
        """The same by whose they are and how they are called: what is learned of one counts for
        all."""
        self.users: dict[str, dict[Key, JobClass]] = {}
        """The classes of users for whom it counts what they have had."""
        self.handicaps: dict[str, float] = {}
        self.weights: dict[str, float] = {}
        """How much those count in a queue."""
        self.dead: set[tuple[JobClass, float, int, int]] = set()
        """Entries of heaps, none of them the first of one, whose jobs are not ready any more."""
        self.stirred = False
        """Whether something has changed since the last plan that could let a job start."""
        self.settled = False
        """Whether there was no room for any class but the fresh ones, when all were looked at."""
        self.fresh: dict[Key, JobClass] = {}
        """Classes that nobody has looked at yet."""
        self.limited = 0
        """How many classes have a time limit."""
        self.overdue: dict[Key, JobClass] = {}
        """Classes whose heads have waited too long."""
        self.anew: Needs[JobClass] = Needs()
        """Classes that have yet to be looked at, as they stand now, if others make room."""
        self.looked: Needs[JobClass] = Needs()
        """All others."""
        self.all_anew = False
        """Whether all are to be looked at, if others can make room for them."""
        self._first: Job | None = None

    def __len__(self) -> int:
        return len(self.where)

    def __contains__(self, job: int) -> bool:
        return job in self.where

    def first(self, jobs: dict[int, Job], stopped: Callable[[JobClass], object]) -> Job | None:
        """The head of the whole line, but for classes that are stopped by a limit.

        Asked for every row of a list, so it is kept until something changes.
        """
        if self._first is None or self._first.id not in self.where:
            heads = [found for found in self.single.values() if not stopped(found)]
            for group in self.groups.values():
                heads += islice((found for found in group.shelf if not stopped(found)), 1)
            best = min(heads, key=lambda found: found.place, default=None)
            self._first = jobs[best.heap[0][2]] if best is not None else None
        return self._first

    def look_again(self) -> None:
        """Limits may let others go first now."""
        self._first = None

    def add(self, job: Job, key: Key, rank: float = 0.0) -> bool:
        """A job became ready; whether it is the first of its class."""
        self._first = None
        found = self.classes.get(key) or self._open(key)
        self.where[job.id] = found
        self.kin.setdefault((job.user, job.name), {})[job.id] = None
        if rank:
            self.ranks[job.id] = rank
        entry = (rank, job.order, job.id)
        if self.dead and (found, *entry) in self.dead:
            self.dead.discard((found, *entry))
        elif not found.heap or entry < found.heap[0]:
            self._unshelve(found)
            heappush(found.heap, entry)
            self._shelve(found)
        else:
            heappush(found.heap, entry)
        self.renew(found)
        return found.heap[0] == entry

    def renew(self, found: JobClass) -> None:
        """Somebody came, or stands elsewhere, or has lost what was kept for it."""
        if not found.anew:
            self.looked.take(found.need, found.place)
            found.anew = True
            self.anew.put(found.need, found.place, found)

    def renew_all(self) -> None:
        """Something else counts for everybody."""
        for found in self.classes.values():
            self.renew(found)

    def looked_at(self, found: JobClass) -> None:
        """Nobody can make room for this class, unless something changes."""
        if found.anew:
            self.anew.take(found.need, found.place)
            found.anew = False
            self.looked.put(found.need, found.place, found)

    def remove(self, job: Job) -> bool:
        """A job is not ready any more; whether it was the first of its class.

        It has still the order with which it was added.
        """
        found = self.where.pop(job.id, None)
        if found is None:
            return False
        alike = self.kin[job.user, job.name]
        del alike[job.id]
        if not alike:
            del self.kin[job.user, job.name]
        entry = (self.ranks.pop(job.id, 0.0), job.order, job.id)
        if found.heap[0] != entry:
            self.dead.add((found, *entry))
            return False
        self._unshelve(found)
        heappop(found.heap)
        while self.dead and found.heap and (found, *found.heap[0]) in self.dead:
            self.dead.discard((found, *heappop(found.heap)))
        if found.heap:
            self._shelve(found)
        else:
            self._close(found)
        return True

    def head(self, found: JobClass, jobs: dict[int, Job]) -> Job | None:
        """The first of a class, or None when the class has emptied."""
        return jobs[found.heap[0][2]] if found.heap else None

    def seat(self, job: Job) -> Place:
        """Where one of them stands."""
        found = self.where[job.id]
        rank = found.stands(self.ranks.get(job.id, 0.0))
        return (-found.priority, rank, job.order, job.id)

    def earliest(self) -> Place | None:
        """A place at or before that of everybody."""
        one, other = self.anew.earliest(), self.looked.earliest()
        if one is None or other is None:
            return one or other
        return min(one, other)

    def handicap(self, user: str, by: float) -> None:
        """All that a user has waiting stands so much further back from now on."""
        forward = by < self.handicaps.get(user, 0.0)
        self.handicaps[user] = by
        for found in self.users.get(user, {}).values():
            self._first = None
            self._unshelve(found)
            found.handicap = self._weighed(found, by)
            self._shelve(found)
            if forward:
                self.renew(found)

    def _weighed(self, found: JobClass, by: float) -> float:
        return by * self.weights.get(found.queue, 1.0)

    def _open(self, key: Key) -> JobClass:
        found = self.classes[key] = self.single[key] = self.fresh[key] = JobClass(key)
        self.queues[found.queue] = self.queues.get(found.queue, 0) + 1
        self.limited += key[4] is not None
        if user := key[5]:
            found.handicap = self._weighed(found, self.handicaps.get(user, 0.0))
            self.users.setdefault(user, {})[key] = found
        if only_amounts_count(key):
            name = _kind(found)
            group = self.groups.get(name)
            if group is not None:
                self._join([found], group)
                return found
            group = self.few.get(name)
            if group is None:
                group = self.few[name] = Group(*name)
            group.few.append(found)
            group.least = _least(group)
            if len(group.few) > FEW:
                self.groups[name] = self.few.pop(name)
                self._join(group.few, group)
                group.few = []
        else:
            self.alone[key] = found
        return found

    def _join(self, classes: list[JobClass], group: Group) -> None:
        for found in classes:
            del self.single[found.key]
            found.group = group
            if found.heap:
                group.shelf.put(found.place, found.amounts, found)

    def _close(self, found: JobClass) -> None:
        del self.classes[found.key]
        self.fresh.pop(found.key, None)
        self.limited -= found.key[4] is not None
        self.queues[found.queue] -= 1
        if not self.queues[found.queue]:
            del self.queues[found.queue]
        if user := found.key[5]:
            del self.users[user][found.key]
            if not self.users[user]:
                del self.users[user]
        group = found.group
        if group is not None:
            if not group.shelf:
                del self.groups[group.shape, group.queue]
            return
        del self.single[found.key]
        if self.alone.pop(found.key, None) is None:
            name = _kind(found)
            group = self.few[name]
            group.few.remove(found)
            if group.few:
                group.least = _least(group)
            else:
                del self.few[name]

    def _shelve(self, found: JobClass) -> None:
        place = found.place = found.place_of(found.heap[0])
        (self.anew if found.anew else self.looked).put(found.need, place, found)
        if found.group is not None:
            found.group.shelf.put(place, found.amounts, found)
        if place[1] <= LONG_AGO:
            self.overdue[found.key] = found

    def _unshelve(self, found: JobClass) -> None:
        if not found.heap:
            return
        (self.anew if found.anew else self.looked).take(found.need, found.place)
        if found.group is not None:
            found.group.shelf.take(found.place, found.amounts)
        self.overdue.pop(found.key, None)


def _least(group: Group) -> int:
    """What one of its few classes needs at least; how many an elastic job gets, nobody knows."""
    ask = group.shape.gpus
    if ask is not None and ask.most is not None:
        return -1
    return min([each.need for each in group.few])


def _kind(found: JobClass) -> tuple[Request, str]:
    """What classes of one group have in common."""
    assert found.request is not None
    return shape_of(found.request), found.queue


def in_order(
    line: ReadyLine, jobs: dict[int, Job], most: int, but: Container[int] = ()
) -> list[Job]:
    """The first ready jobs in the order in which they are considered, but for these arrays."""
    first: list[Place] = []
    for found in line.classes.values():
        if not (found.array and found.array in but):
            first += map(found.place_of, _first(line, found, most))
    return [jobs[int(place[-1])] for place in sorted(first)[:most]]


def _first(line: ReadyLine, found: JobClass, most: int) -> list[Entry]:
    """Return the first jobs of a class that are still ready."""
    heap, taken = found.heap.copy(), list[Entry]()
    while heap and len(taken) < most:
        entry = heappop(heap)
        if (found, *entry) not in line.dead:
            taken.append(entry)
    return taken


def in_rows(
    line: ReadyLine, jobs: dict[int, Job], most: int, but: Container[int] = ()
) -> list[list[int]]:
    """Return the first ready jobs in the same order, equal members of an array in one row."""
    first: list[tuple[Place, list[Entry]]] = []
    for found in line.classes.values():
        if found.array and found.array in but:
            continue
        if all(jobs[entry[2]].array is None for entry in found.heap):
            first += [(found.place_of(entry), [entry]) for entry in _first(line, found, most)]
            continue
        # Not sorted: 100,000 members of an array take 40 ms, sorting them several times as long.
        rows: dict[object, list[Entry]] = {}
        for entry in found.heap:
            if not line.dead or (found, *entry) not in line.dead:
                job = jobs[entry[2]]
                alike = job.array is not None and job.params is None
                row = (job.array, job.spec) if alike else entry[2]
                rows.setdefault(row, []).append(entry)
        first += [(found.place_of(min(entries)), entries) for entries in rows.values()]
    found_rows = nsmallest(most, first, key=lambda row: row[0])
    return [
        [int(place[-1]), *(entry[2] for entry in entries if entry[2] != place[-1])]
        for place, entries in found_rows
    ]
