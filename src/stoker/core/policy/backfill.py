"""Who may slip into the gaps without delaying the one at the head of the line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

from stoker.core.cluster import Cluster, Placement, Shadow
from stoker.core.policy.fit import fit, gpus_needed
from stoker.core.policy.place import gpus_left, has_room, machines_for, place
from stoker.core.policy.shelf import START, Amounts, Enough, Place
from stoker.core.policy.sparing import sparing
from stoker.core.policy.vacant import vacant
from stoker.core.request import GPU, Request

End = tuple[float, Placement]
"""When one is over at the latest, and what it holds until then."""
Ends = Callable[[], Iterable[End]]
GRACE = 10.0
"""Seconds a job may take to end after its time limit, before it is killed."""
LONGEST = 1e300
"""More than any time limit, and less than none."""


class Reservation:
    """The head's place: when it can start at the latest, and on what."""

    def __init__(self, start: float, later: Shadow, head: Placement) -> None:
        """`later`: the ledger as it will be then."""
        self.start = start
        later.take(head)
        self.nodes = {part.node: later.nodes[part.node] for part in head.parts}
        """Its machines as they will be when it has started. On others nothing becomes less."""

    def take(self, placement: Placement) -> None:
        """Somebody who is not over in time starts beside it."""
        for part in placement.parts:
            if (node := self.nodes.get(part.node)) is not None:
                node.take(part.takes)

    def over_in_time(self, now: float, limit: int | None) -> bool:
        """Whether a job that starts now is over, at the latest, when the head wants to start."""
        return limit is not None and now + limit + GRACE <= self.start

    def beside(self, cluster: Cluster) -> Cluster:
        """What is free now and stays free when the head has started."""
        gap = cluster.shadow()
        for name, node in self.nodes.items():
            later = node.by_name
            for device in gap.own(name).devices():
                kept = later.get((device.type, device.name))
                if kept is not None:
                    if kept.free < device.free:
                        device.free, device.slivers = kept.free, kept.slivers
                    device.memory_free = min(device.memory_free, kept.memory_free)
        return gap


class Gate:
    """One pass over the line: finds room, and lets nobody delay the first that has none."""

    def __init__(
        self,
        cluster: Cluster,
        ends: Ends,
        passed: Callable[[], Iterable[Request]],
        now: float,
        kept: Sequence[tuple[Place, int, Placement]] = (),
    ) -> None:
        self.cluster, self.now = cluster, now
        self.kept = kept
        """Those for whom others are making room right now, in order, and what is kept for them."""
        self.at: Place = START
        """Where in line we are."""
        self.ends = ends
        """When each running attempt is over at the latest; asked only if it matters."""
        self.passed = passed
        """Who had no room since this was last asked, in order; asked only if it matters."""
        self.reservation: Reservation | None = None
        self._gap: tuple[int, Cluster] | None = None
        """What is free beside the reservation, without what is kept for so many."""
        self._someday: dict[Request, Enough] = {}
        self._left: Shadow | None = None
        self._found: tuple[Place, Request, Placement | None] | None = None
        self._kept = 0
        self._never: dict[Request, set[Amounts]] = {}
        self._near: dict[Request, Enough] = {}
        """What there is for each shape on the machines that changed, until something is taken."""

    def find(self, request: Request, limit: int | None) -> Placement | None:
        """Devices on which this request may start now, or None. The caller takes them."""
        placement, self._found = self.room_for(request), None
        if placement is None:
            return None
        self._left = None
        self._near.clear()
        if self.reservation is None:
            self.reservation = self._reserved()
        ahead = self.reservation
        if ahead is not None and not ahead.over_in_time(self.now, limit):
            placement = place(self._beside(ahead), request)
            if placement is not None:
                ahead.take(placement)
        if placement is not None:
            self._gap = None
        return placement

    def room_for(self, request: Request) -> Placement | None:
        """Devices that are free now and not kept for somebody before this place, reserved or not.

        They are remembered until somebody has them.
        """
        if self._found is None or self._found[:2] != (self.at, request):
            self._found = (self.at, request, place(self._ledger(), request))
        return self._found[2]

    @property
    def is_reserved(self) -> bool:
        """Whether somebody may have room and not start, since others would be delayed."""
        return self.reservation is not None

    def forget(self) -> None:
        """Something else is kept than before."""
        self._left = self._found = self._gap = None
        self._near.clear()

    def _ledger(self) -> Cluster:
        """What is free now, and not kept for somebody before this place."""
        return self._unkept() if self._is_behind() else self.cluster

    def _is_behind(self) -> bool:
        """Whether somebody before this place in line is being made room for."""
        return bool(self.kept) and self.kept[0][0] < self.at

    def _unkept(self) -> Shadow:
        """The ledger without what is kept for those before this place."""
        if self._left is None:
            self._left, self._kept = self.cluster.shadow(), 0
        for seat, _, placement in self.kept[self._kept :]:
            if seat >= self.at:  # what is kept for itself, it may have
                break
            keep(self._left, placement)
            self._kept += 1
        return self._left

    def _reserved(self) -> Reservation | None:
        for request in self.passed():
            found = reserve(self.cluster, self.ends(), request)
            if found is not None:
                return found
            # Not even the end of all running jobs would help it (strangers, drained devices),
            # so it must not block the others, and the next one is the head.
        return None

    def _beside(self, ahead: Reservation) -> Cluster:
        ledger = self._ledger()
        if self._gap is None or self._gap[0] != self._kept:
            self._gap = (self._kept, ahead.beside(ledger))
        return self._gap[1]

    def ways(self, shape: Request, among: Iterable[str] | None = None) -> Enough:
        """Whether requests of a shape find so much now, with the time limit that comes last.

        `among`: as far as is known, there is room for them nowhere but on these machines.
        """
        ahead = self.reservation
        if ahead is None:
            if self._is_behind():
                room = has_room(self._unkept(), shape, among)
            elif among is not None:
                return self._near.get(shape) or self._look_near(shape, among)
            else:  # what is not there now will not be there later in this pass
                room = has_room(self.cluster, shape, None, self._never.setdefault(shape, set()))
            return room
        # A little more time than there is, so that no rounding hides one that `find` would take.
        left = min(ahead.start - self.now - GRACE + 0.001, LONGEST)
        now, later = has_room(self.cluster, shape), has_room(self._beside(ahead), shape)
        return lambda asked: (asked[-1] <= left and now(asked)) or later(asked)

    def _look_near(self, shape: Request, among: Iterable[str]) -> Enough:
        never = self._never.setdefault(shape, set())
        found = self._near[shape] = has_room(self.cluster, shape, among, never)
        return found

    def someday(self, shape: Request) -> Enough:
        """Whether requests of a shape could get so much if all that runs were over."""

        def enough(asked: Amounts) -> bool:
            room = self._someday.get(shape)
            if room is None:
                room = self._someday[shape] = has_room(vacant(self.cluster), shape)
            return room(asked)

        return enough


def keep(ledger: Shadow, placement: Placement) -> None:
    """Take as much of a placement as is free yet."""
    for part in placement.parts:
        node = ledger.own(part.node)
        for take in part.takes:
            device = node.by_name[take.type, take.device]
            device.free -= min(take.amount, max(device.free, 0))
            device.memory_free -= min(take.memory, max(device.memory_free, 0))


def reserve(
    cluster: Cluster, running: Iterable[tuple[float, Placement]], request: Request
) -> Reservation | None:
    """When the running jobs let this request start; None when even their end would not.

    `running` holds each attempt's latest end (infinite without a time limit), in order. With an
    unlimited job in the way, the start is unknown, but the devices are still kept: only
    jobs with a limit, or jobs that fit beside the head, may start before it.
    """
    later = _Freed(cluster, request)
    for end, placement in running:
        for part in placement.parts:
            later.free(part)
        found = later.found()
        if found is not None:
            return Reservation(end, later.ledger, sparing(request, found, later.ledger, cluster))
    return None


class _Freed:
    """What there is for somebody when one after the other of those who run is over."""

    def __init__(self, cluster: Cluster, request: Request) -> None:
        self.cluster, self.request = cluster, request
        self.ledger = cluster.shadow()
        """Of machines that may do."""
        self._each = request.part
        self._fit = machines_for(cluster, request)
        self._found: set[str] = set()
        """Machines that will do, and did not before."""
        self._freed: dict[str, list[Placement]] = {}
        """What is not entered yet."""
        self._left: dict[str, int] = {}

    def free(self, part: Placement) -> None:
        """One is over that had this."""
        name, left = part.node, self._left.get(part.node)
        if left is None:
            left = gpus_left(self.cluster, name)
        left += sum([take.amount for take in part.takes if take.type == GPU])
        self._left[name] = left
        self._freed.setdefault(name, []).append(part)
        if left >= gpus_needed(self.request):
            self._look(name)

    def _look(self, name: str) -> None:
        node, before = self.ledger.own(name), self.cluster.node(name)
        for each in self._freed.pop(name):
            node.release(each.takes)
        if name in self._found or fit(node, self._each) is None:
            return
        if before is None or fit(before, self._each) is None:
            self._found.add(name)

    def found(self) -> Placement | None:
        """Where there is room now, if there is."""
        if self._fit + len(self._found) < self.request.machines:
            return None
        return place(self.ledger, self.request)


def latest_end(started: float | None, limit: int | None, slack: float) -> float:
    """The boot-clock time by which an attempt is over for sure."""
    if started is None or limit is None:
        return inf
    return started + limit + slack + GRACE
