"""Who may slip into the gaps without delaying anybody before it (conservative backfill).

Everybody that has no room is given a place in the calendar, in the order of the line: the first
moment from which on what it needs is free for as long as it may run, by the time limits of those
who run and by what those before it were given. Whoever starts now must be over before any of these
begins, or fit beside it.

The calendar is made anew in every pass, so that whoever ends early makes room for all behind it.
It holds a hundred: what nobody can tell of the far end of a long line is not worth its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

from msgspec import Struct

from stoker.core.cluster import Cluster, Placement, Shadow
from stoker.core.policy.backfill import GRACE, End, Ends, Gate, keep
from stoker.core.policy.place import could_hold, place
from stoker.core.policy.shelf import START, Place
from stoker.core.policy.sparing import sparing
from stoker.core.policy.vacant import vacant
from stoker.core.request import GPU, Request

MOST = 100
"""So many of those who have no room are given a place in the calendar."""
STAGES = (1, 4, 16, MOST)
"""Whoever wants to start is first compared with so many of them."""


class Booked(Struct, frozen=True):
    """What somebody who waits will have, from when on, and for how long at the most."""

    start: float
    span: float
    request: Request
    placement: Placement

    @property
    def end(self) -> float:
        """When it is over at the latest."""
        return self.start + self.span

    def holds(self, moment: float) -> bool:
        """Whether it has its devices at this moment."""
        return self.start <= moment < self.end

    def meets(self, start: float, end: float) -> bool:
        """Whether both want something at the same time; of two without an end, always."""
        before = self.start < end or end == inf
        return before and (start < self.end or self.end == inf)


Waiting = tuple[Place, Request, int | None]
"""Where one that waits stands, what it asks for and its time limit."""


class Calendar(Gate):
    """One pass over the line: finds room, and lets nobody delay anybody before it."""

    def __init__(
        self,
        cluster: Cluster,
        ends: Ends,
        ahead: Callable[[], Iterator[Waiting]],
        now: float,
        kept: list[tuple[Place, int, Placement]],
    ) -> None:
        super().__init__(cluster, ends, tuple, now, kept)
        self.ahead = ahead
        """Those before this place who wait, in order."""
        self.booked: list[Booked] = []
        self._upto: Place = START
        self._ends: list[End] | None = None
        self._began: dict[int, float] = {}
        """When those are over who began in this pass, by what they hold."""

    @property
    def is_reserved(self) -> bool:
        """Whether somebody may have room and not start, since others would be delayed."""
        return bool(self.booked)

    def find(self, request: Request, limit: int | None) -> Placement | None:
        """Devices on which this request may start now, or None. The caller takes them."""
        placement, self._found = self.room_for(request), None
        over = self.now + _longest(limit)
        for most in STAGES:  # most of those who are refused delay one of the very first
            if placement is None:
                return None
            more = self._book(most)
            free = self._ledger().shadow()
            self._keep_booked(free, self.now, over)
            placement = place(free, request)
            if not more:
                break
        if placement is not None:
            self._left = self._ends = None
            self._began[id(placement)] = over
        return placement

    def _book(self, most: int) -> bool:
        """Give so many of those before this place their places; whether there may be others."""
        if len(self.booked) >= most:
            return most < MOST
        for seat, request, limit in self.ahead():
            if seat <= self._upto:
                continue
            self._upto = seat
            found = self._first(request, _longest(limit), self._all_ends())
            if found is not None:  # otherwise not even the end of all who run would help it
                self.booked.append(found)
            if len(self.booked) >= most:
                return most < MOST
        return False

    def _all_ends(self) -> list[End]:
        if self._ends is None:
            began = self._began
            ends = [(min(end, began.get(id(held), inf)), held) for end, held in self.ends()]
            self._ends = sorted(ends, key=lambda each: each[0])
        return self._ends

    def _first(self, request: Request, span: float, ends: list[End]) -> Booked | None:
        """The first moment from which on there is room for so long."""
        later, at, idle = self.cluster.shadow(), 0, vacant(self.cluster)
        # Nobody who asks for the same, and for no longer, was given an earlier one.
        least = max(
            (each.start for each in self.booked if each.request == request and each.span <= span),
            default=self.now,
        )
        useful = {least} | {
            end
            for end, held in (*ends, *((each.end, each.placement) for each in self.booked))
            if end >= least
            and (
                id(held) in self._began
                or any(could_hold(idle, part.node, request) for part in held.parts)
            )
        }
        free = self._free_gpus()
        for start in sorted(useful):
            while at < len(ends) and ends[at][0] <= start:
                later.release(ends[at][1])
                free += ends[at][1].gpu_amount
                at += 1
            taken = sum(each.placement.gpu_amount for each in self.booked if each.holds(start))
            if free - taken < request.gpu_amount:
                continue
            there = later.shadow()
            self._keep_booked(there, start, start + span)
            found = place(there, request)
            if found is not None:
                return Booked(start, span, request, sparing(request, found, there, self.cluster))
        return None

    def _free_gpus(self) -> int:
        """How many GPUs are free now, at most."""
        nodes = (self.cluster.node(name) for name in self.cluster.names())
        cards = (card for node in nodes if node is not None for card in node.types.get(GPU, ()))
        return sum(max(card.free, 0) for card in cards)

    def _keep_booked(self, ledger: Shadow, start: float, end: float) -> None:
        """Leave of everything what nobody was given at any moment of this time."""
        shared: dict[_Name, list[_Change]] = {}
        for each in self.booked:
            if not each.meets(start, end):
                continue
            for part in each.placement.parts:
                node, whole = ledger.own(part.node), []
                for take in part.takes:
                    if take.amount == node.by_name[take.type, take.device].facts.capacity:
                        whole.append(take)
                        continue
                    changes = shared.setdefault((part.node, take.type, take.device), [])
                    changes.append((max(each.start, start), -take.amount, -take.memory))
                    changes.append((each.end, take.amount, take.memory))
                keep(ledger, Placement(part.node, tuple(whole)))
        if not shared:
            return
        for over, held in self._all_ends():
            for part in held.parts if start < over < end else ():
                for take in part.takes:
                    if (key := (part.node, take.type, take.device)) in shared:
                        shared[key].append((over, take.amount, take.memory))
        for (machine, type, name), changes in shared.items():
            device = ledger.own(machine).by_name[type, name]
            amount, memory = _lowest(changes, end)
            device.free -= min(amount, max(device.free, 0))
            device.memory_free -= min(memory, max(device.memory_free, 0))


_Name = tuple[str, str, str]
"""A machine, and a device by its type and name."""
_Change = tuple[float, int, int]
"""When a device has more or less left, how much, and of its memory."""


def _lowest(changes: list[_Change], end: float) -> tuple[int, int]:
    """By how much less there is at some moment before the end than in the beginning."""
    amount = memory = 0
    lowest = least = 0
    for at, more, space in sorted(changes, key=lambda each: (each[0], -each[1])):
        if end <= at < inf:
            break
        amount, memory = amount + more, memory + space
        lowest, least = min(lowest, amount), min(least, memory)
    return -lowest, -least


def _longest(limit: int | None) -> float:
    return inf if limit is None else limit + GRACE
