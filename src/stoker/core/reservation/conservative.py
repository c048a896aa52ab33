"""Conservative backfill: a job starts early only if it delays no protected job before it.

Source: Mu'alem & Feitelson, IEEE TPDS 12(6), 2001. Every blocked job is booked into the earliest
slot in which its request is free for as long as it may run, by the time limits of running jobs
and the slots of jobs before it. A job may start now if it ends before those slots or fits beside
them. Slots are booked again in every scan, so that a job that ends early lets others move up.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from math import inf

from msgspec import Struct

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.overlay import Overlay
from stoker.core.model.hardware import Placement
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.placement.capacity import free_gpus
from stoker.core.placement.placer import find_placement, find_placement_on
from stoker.core.placement.request_shape import gpus_needed
from stoker.core.reservation.device_choice import prefer_busy_devices
from stoker.core.reservation.easy import BlockedJob, EasyBackfill
from stoker.core.reservation.reservation import Releases
from stoker.core.running.release_times import KILL_GRACE_SECONDS, Release
from stoker.core.structures.amounts import BEFORE_ALL, SortKey

MAX_RESERVATIONS = 100
"""Blocked jobs per scan that get a slot: later starts are too uncertain to be worth the time."""


class BookedSlot(Struct, frozen=True):
    """The devices of a blocked job, from its start for as long as it may run."""

    start: float
    duration: float
    end: float
    """The latest end of the job."""
    request: ResourceRequest
    placement: Placement

    def overlaps(self, start: float, end: float) -> bool:
        """Whether the slot and this interval overlap; two without an end always do."""
        begins_before_end = self.start < end or end == inf
        return begins_before_end and (start < self.end or self.end == inf)


class ConservativeBackfill(EasyBackfill):
    """Conservative backfill for one scan of the queue.

    Derived from: release times, and the protected jobs before the last candidate.
    Invariant: slots are booked in queue order.
    """

    def __init__(self, cluster: Cluster, releases: Releases, now: float) -> None:
        super().__init__(cluster, releases, now)
        self._slots: list[BookedSlot] = []
        self._booked_until: SortKey = BEFORE_ALL
        self._timeline: _Timeline | None = None
        self._started: dict[int, float] = {}
        """Latest end of the jobs that started in this scan, by the identity of their placement."""

    @property
    def has_reservation(self) -> bool:
        """Whether a job that fits may be kept from starting by a slot."""
        return bool(self._slots)

    def try_start(
        self,
        request: ResourceRequest,
        limit: int | None,
        ledger: Cluster,
        blocked: Iterable[BlockedJob],
    ) -> Placement | None:
        """Return devices on which a request may start now, or None. The caller allocates them."""
        placement, end = find_placement(ledger, request), self.now + _duration(limit)
        for slot in self._slots_before(blocked):
            if placement is None:
                return None
            if slot.overlaps(self.now, end) and _share_node(slot.placement, placement):
                placement = find_placement(self._beside_slots(ledger, end), request)
        if placement is not None:
            placement = find_placement(self._beside_slots(ledger, end), request)
        if placement is not None:
            self._timeline = None
            self._started[id(placement)] = end
        return placement

    def _beside_slots(self, ledger: Cluster, end: float) -> Cluster:
        """Return what is free in a ledger, and stays free until `end` beside the slots."""
        free = Overlay(ledger)
        if self._slots:
            timeline = self._current_timeline()
            timeline.withhold(free, timeline.slots, self.now, end)
        return free

    def _slots_before(self, blocked: Iterable[BlockedJob]) -> Iterator[BookedSlot]:
        """Yield the slots of jobs before a candidate; those without one are booked on the way."""
        yield from self._slots.copy()
        for job in blocked:
            if len(self._slots) >= MAX_RESERVATIONS:
                return
            if job.key <= self._booked_until or (self._slots and not job.is_conservative):
                continue
            self._booked_until = job.key
            slot = self._earliest_slot(job.request, _duration(job.limit))
            if slot is not None:  # otherwise the end of all running jobs would not help it
                self._slots.append(slot)
                self._current_timeline().book(slot)
                yield slot

    def _current_timeline(self) -> _Timeline:
        if self._timeline is None:
            releases = [
                (min(end, self._started.get(id(placement), inf)), placement)
                for end, placement in self.releases()
            ]
            self._timeline = _Timeline(self.cluster, releases, self._slots)
        return self._timeline

    def _earliest_slot(self, request: ResourceRequest, duration: float) -> BookedSlot | None:
        """Return the first time from which the request is free for this duration."""
        # A job with the same request and no longer duration got no earlier slot.
        alike = [
            slot.start
            for slot in self._slots
            if slot.request == request and slot.duration <= duration
        ]
        timeline = self._current_timeline()
        for start, names in timeline.starts(request, max(alike, default=self.now)):
            free = timeline.free_during(names, start, start + duration)
            found = find_placement_on(free, names, request)
            if found is not None:
                chosen = prefer_busy_devices(request, found, free, self.cluster)
                return BookedSlot(start, duration, start + duration, request, chosen)
            if request.node_count == 1:
                names.clear()  # they fit only once more is released there
        return None


class _Timeline:
    """When devices are released and booked, by node."""

    def __init__(
        self, cluster: Cluster, releases: Iterable[Release], slots: Iterable[BookedSlot]
    ) -> None:
        self._cluster = cluster
        self._free_gpus = {name: free_gpus(cluster, name) for name in cluster.node_names()}
        self._changes: list[tuple[float, int, str]] = []
        """Time at which a node has more or fewer free GPUs, by how much, and its name; sorted."""
        self._releases: dict[str, list[Release]] = {}
        self.slots: dict[str, list[tuple[BookedSlot, Placement]]] = {}
        """Slots with their part of each node."""
        for end, placement in releases:
            for part in placement.parts:
                self._releases.setdefault(part.node, []).append((end, part))
                self._changes.append((end, _gpus(part), part.node))
        self._changes.sort()
        for slot in slots:
            self.book(slot)

    def book(self, slot: BookedSlot) -> None:
        """Add a slot."""
        for part in slot.placement.parts:
            self.slots.setdefault(part.node, []).append((slot, part))
            insort(self._changes, (slot.start, -_gpus(part), part.node))
            insort(self._changes, (slot.end, _gpus(part), part.node))

    def starts(
        self, request: ResourceRequest, earliest: float
    ) -> Iterator[tuple[float, dict[str, None]]]:
        """Yield possible start times, with the nodes that may have enough GPUs then.

        A node is in the result until the caller removes it, and again when more is free there.
        """
        free, needed, start = self._free_gpus.copy(), gpus_needed(request), earliest
        names, changes, index = dict.fromkeys(free), self._changes, 0
        while True:
            while index < len(changes) and changes[index][0] <= start:
                _, gpus, name = changes[index]
                free[name] += gpus
                if gpus >= 0:
                    names[name] = None
                index += 1
            names = {name: None for name in names if free[name] >= needed}
            if len(names) >= request.node_count:
                yield start, names
            if index == len(changes):
                return
            start = changes[index][0]

    def free_during(self, names: Iterable[str], start: float, end: float) -> Overlay:
        """Return a ledger of what is free on these nodes during an interval."""
        free = Overlay(self._cluster)
        for name in names:
            node = free.writable(name)
            for time, part in self._releases.get(name, ()):
                if time <= start:
                    node.release(part.allocations)
        self.withhold(free, names, start, end)
        return free

    def withhold(self, ledger: Overlay, names: Iterable[str], start: float, end: float) -> None:
        """Leave on these nodes of a ledger what no slot has at any time of an interval."""
        for name in names:
            changes: dict[tuple[str, str], list[_Change]] = {}
            for slot, part in self.slots.get(name, ()):
                for held in part.allocations if slot.overlaps(start, end) else ():
                    of_device = changes.setdefault((held.type, held.device), [])
                    of_device.append((max(slot.start, start), -held.amount, -held.memory))
                    if slot.end < end:
                        of_device.append((slot.end, held.amount, held.memory))
            for time, part in self._releases.get(name, ()) if changes else ():
                for held in part.allocations if start < time < end else ():
                    if (held.type, held.device) in changes:
                        changes[held.type, held.device].append((time, held.amount, held.memory))
            devices = ledger.writable(name).by_name if changes else {}
            for device, of_device in changes.items():
                devices[device].withhold(*_max_withheld(of_device))


_Change = tuple[float, int, int]
"""Time at which a device has more or less free, by which amount, and how much of its memory."""


def _max_withheld(changes: list[_Change]) -> tuple[int, int]:
    """Return by how much less is free at some time than at the start."""
    amount = memory = 0
    min_amount = min_memory = 0
    for _, more, more_memory in sorted(changes, key=lambda change: (change[0], -change[1])):
        amount, memory = amount + more, memory + more_memory
        min_amount, min_memory = min(min_amount, amount), min(min_memory, memory)
    return -min_amount, -min_memory


def _gpus(part: Placement) -> int:
    return sum(held.amount for held in part.allocations if held.type == GPU)


def _share_node(one: Placement, other: Placement) -> bool:
    nodes = {part.node for part in one.parts}
    return any(part.node in nodes for part in other.parts)


def _duration(limit: int | None) -> float:
    return inf if limit is None else limit + KILL_GRACE_SECONDS
