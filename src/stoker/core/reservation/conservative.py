"""Conservative backfill: a job starts early only if it delays no protected job before it.

Source: Mu'alem & Feitelson, IEEE TPDS 12(6), 2001. Each of the first `MAX_RESERVATIONS` protected
jobs is booked into the earliest slot in which its request is free for as long as it may run, by the
release times of running jobs and the slots of jobs before it. A job may start now if it ends before
those slots or fits beside them. Slots are booked again in every scan, so that a job that ends early
lets others move up.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from math import inf
from operator import itemgetter
from sys import maxsize

from msgspec import Struct

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.overlay import Overlay
from stoker.core.model.resources import GPU, Placement, ResourceRequest
from stoker.core.placement.advance import Occupation, without_reserved
from stoker.core.placement.capacity import free_gpus
from stoker.core.placement.horizon import exclude_ending_nodes
from stoker.core.placement.placer import find_placement, find_placement_on
from stoker.core.placement.request_shape import gpus_needed
from stoker.core.reservation.easy import BlockedJob, EasyBackfill
from stoker.core.reservation.reservation import Releases, prefer_busy_devices
from stoker.core.running.release_times import KILL_GRACE_SECONDS, Release
from stoker.core.structures import BEFORE_ALL, SortKey

MAX_RESERVATIONS = 20
"""Blocked jobs per scan that get a slot. With 100, an event takes twice as long, and the mean
completion time of the first 400 jobs of Muri 1 changes by 0.6 %."""


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

    def __init__(
        self, cluster: Cluster, releases: Releases, now: float, wall_offset: float = 0.0
    ) -> None:
        super().__init__(cluster, releases, now, wall_offset)
        self._slots: list[BookedSlot] = []
        self._booked_until: SortKey = BEFORE_ALL
        self._timeline: _Timeline | None = None
        self._started: dict[int, float] = {}
        """Latest end of the jobs that started in this scan, by the identity of their placement."""

    def find_start(
        self,
        request: ResourceRequest,
        limit: int | None,
        ledger: Cluster,
        blocked: Iterable[BlockedJob],
    ) -> Placement | None:
        """Return devices on which a request may start now, or None. The caller allocates them."""
        end = self.now + _duration(limit)
        if self._find_beside_slots(ledger, request, end) is None:
            return None
        self._book_slots(blocked)
        placement = self._find_beside_slots(ledger, request, end)
        if placement is not None:
            self._timeline = None
            self._started[id(placement)] = end
        return placement

    def start_regardless(self, request: ResourceRequest, ledger: Cluster) -> Placement | None:
        """Return devices on which a job starts now whatever it delays: they are reserved for it."""
        self._timeline = None
        return super().start_regardless(request, ledger)

    def _find_beside_slots(
        self, ledger: Cluster, request: ResourceRequest, end: float
    ) -> Placement | None:
        """Return devices that are free in a ledger, and stay free until `end` beside the slots."""
        free = Overlay(ledger)
        if self._slots:
            timeline = self._current_timeline()
            names = timeline.may_hold(ledger.base.nodes, request, self.now, end)
            if len(names) < request.node_count:
                return None
            timeline.withhold(free, timeline.slots, self.now, end)
        return find_placement(free, request)

    def _book_slots(self, blocked: Iterable[BlockedJob]) -> None:
        """Book slots for jobs before a candidate that have none."""
        for job in blocked:
            if len(self._slots) >= MAX_RESERVATIONS:
                return
            if job.key <= self._booked_until or (self._slots and not job.is_conservative):
                continue
            self._booked_until = job.key
            slot = self._earliest_slot(
                job.request, _duration(job.limit), job.time_needed, job.occupation
            )
            if slot is not None:  # otherwise the end of all running jobs would not help it
                self._slots.append(slot)
                self._current_timeline().book(slot)

    def _current_timeline(self) -> _Timeline:
        if self._timeline is None:
            releases = [
                (min(end, self._started.get(id(placement), inf)), placement)
                for end, placement in self.all_releases()
            ]
            self._timeline = _Timeline(self.cluster, releases, self._slots)
        return self._timeline

    def _earliest_slot(
        self,
        request: ResourceRequest,
        duration: float,
        time_needed: int,
        occupation: Occupation | None,
    ) -> BookedSlot | None:
        """Return the first time from which the request is free for this duration."""
        # A job with the same request and no longer duration got no earlier slot; beside nodes that
        # end, it may have needed them for longer.
        alike = [
            slot.start
            for slot in self._slots
            if slot.request == request and slot.duration <= duration
            if not (self.cluster.base.node_ends or self.cluster.base.advance_reservations)
        ]
        timeline = self._current_timeline()
        for start, names in timeline.starts(request, max(alike, default=self.now), duration):
            needed_until = start + self.wall_offset + time_needed
            request_then = exclude_ending_nodes(self.cluster, request, needed_until)
            if occupation is not None:
                at = start + self.wall_offset
                request_then = without_reserved(self.cluster, request_then, occupation, at)
            free = timeline.free_during(names, start, start + duration)
            found = find_placement_on(free, names, request_then)
            if found is not None:
                chosen = prefer_busy_devices(request_then, found, free, self.cluster)
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
        self._used_gpus = {name: [(-inf, -free_gpus(cluster, name))] for name in cluster.base.nodes}
        """Times at which more GPUs of a node are used, or fewer (negative), and how many; sorted.
        The first entry is what is free."""
        self._releases: dict[str, list[Release]] = {}
        self.slots: dict[str, list[tuple[BookedSlot, Placement]]] = {}
        """Slots with their part of each node."""
        for end, placement in releases:
            for part in placement.parts:
                self._releases.setdefault(part.node, []).append((end, part))
                insort(self._used_gpus[part.node], (end, -_gpus(part)))
        for slot in slots:
            self.book(slot)

    def book(self, slot: BookedSlot) -> None:
        """Add a slot."""
        for part in slot.placement.parts:
            self.slots.setdefault(part.node, []).append((slot, part))
            insort(self._used_gpus[part.node], (slot.start, _gpus(part)))
            insort(self._used_gpus[part.node], (slot.end, -_gpus(part)))

    def may_hold(
        self, names: Iterable[str], request: ResourceRequest, start: float, end: float
    ) -> dict[str, None]:
        """Return the nodes with enough GPUs during an interval, of whichever devices."""
        needed = gpus_needed(request)
        return {
            name: None
            for name in names
            if not needed or self._least_free_gpus(name, start, end) >= needed
        }

    def _least_free_gpus(self, name: str, start: float, end: float) -> int:
        free, least = 0, maxsize
        for time, used in self._used_gpus[name]:
            if time > start:
                least = min(least, free)
                if time >= end:
                    return least
            free -= used
        return min(least, free)

    def starts(
        self, request: ResourceRequest, earliest: float, duration: float
    ) -> Iterator[tuple[float, dict[str, None]]]:
        """Yield possible start times, with the nodes that may have enough GPUs from then on.

        A node is in the result until the caller removes it, and again when more is free there.
        """
        ends = sorted(
            (time, name)
            for name, changes in self._used_gpus.items()
            for time, used in changes
            if time > earliest and used <= 0
        )
        names = dict.fromkeys(self._used_gpus)
        for start, more in chain([(earliest, iter(()))], groupby(ends, key=itemgetter(0))):
            names |= dict.fromkeys(name for _, name in more)
            names = self.may_hold(names, request, start, start + duration)
            if len(names) >= request.node_count:
                yield start, names

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


def _duration(limit: int | None) -> float:
    return inf if limit is None else limit + KILL_GRACE_SECONDS
