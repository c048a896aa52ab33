"""Conservative backfill: a job starts early only if it delays no protected job before it.

Source: Mu'alem & Feitelson, IEEE TPDS 12(6), 2001. Every blocked job is booked into the earliest
slot in which its request is free for as long as it may run, by the time limits of running jobs
and the slots of jobs before it. A job may start now if it ends before those slots or fits beside
them. Slots are booked again in every scan, so that a job that ends early lets others move up.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from math import inf

from msgspec import Struct

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.idle import idle_cluster
from stoker.core.cluster.overlay import Overlay
from stoker.core.model.hardware import Placement
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.model.units import THOUSAND
from stoker.core.placement.capacity import may_hold
from stoker.core.placement.placer import find_placement, find_placement_on
from stoker.core.placement.request_shape import gpus_needed
from stoker.core.reservation.device_choice import prefer_busy_devices
from stoker.core.reservation.easy import BlockedJob, EasyBackfill
from stoker.core.reservation.reservation import Releases
from stoker.core.running.release_times import KILL_GRACE_SECONDS, Release
from stoker.core.structures.fit_tree import BEFORE_ALL, SortKey

MAX_RESERVATIONS = 100
"""Blocked jobs per scan that get a slot: later starts are too uncertain to be worth the time."""
BOOKING_STAGES = (1, 4, 16, MAX_RESERVATIONS)
"""Numbers of slots that a candidate is compared with: most are refused by one of the first."""


class BookedSlot(Struct, frozen=True):
    """The devices of a blocked job, from its start for as long as it may run."""

    start: float
    duration: float
    request: ResourceRequest
    placement: Placement
    end: float
    """The latest end of the job."""
    whole_gpus: frozenset[tuple[str, str]]
    """The GPUs that it does not share, by node and name."""

    def overlaps(self, start: float, end: float) -> bool:
        """Whether the slot and this interval overlap; two without an end always do."""
        begins_before_end = self.start < end or end == inf
        return begins_before_end and (start < self.end or self.end == inf)


def _booked_slot(
    start: float, duration: float, request: ResourceRequest, placement: Placement
) -> BookedSlot:
    whole_gpus = frozenset(
        (part.node, held.device)
        for part in placement.parts
        for held in part.allocations
        if held.type == GPU and held.amount >= THOUSAND
    )
    return BookedSlot(start, duration, request, placement, start + duration, whole_gpus)


class ConservativeBackfill(EasyBackfill):
    """Conservative backfill for one scan of the queue.

    Derived from: release times, and the protected jobs before the last candidate.
    Invariant: slots are booked in queue order.
    """

    def __init__(self, cluster: Cluster, releases: Releases, now: float) -> None:
        super().__init__(cluster, releases, now)
        self._slots: list[BookedSlot] = []
        self._booked_until: SortKey = BEFORE_ALL
        self._sorted_releases: list[Release] | None = None
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
        placement = find_placement(ledger, request)
        end, unbooked = self.now + _duration(limit), iter(blocked)
        for max_slots in BOOKING_STAGES:
            if placement is None:
                return None
            may_have_more = self._book(unbooked, max_slots)
            free = Overlay(ledger)
            slots = [slot for slot in self._slots if slot.overlaps(self.now, end)]
            self._withhold(free, slots, self.now, end)
            placement = find_placement(free, request)
            if not may_have_more:
                break
        if placement is not None:
            self._sorted_releases = None
            self._started[id(placement)] = end
        return placement

    def _book(self, blocked: Iterator[BlockedJob], max_slots: int) -> bool:
        """Book up to a number of slots; return whether there may be jobs without one."""
        if len(self._slots) >= max_slots:
            return max_slots < MAX_RESERVATIONS
        for job in blocked:
            if job.key <= self._booked_until or (self._slots and not job.is_conservative):
                continue
            self._booked_until = job.key
            slot = self._earliest_slot(job.request, _duration(job.limit), self._all_releases())
            if slot is not None:  # otherwise the end of all running jobs would not help it
                self._slots.append(slot)
            if len(self._slots) >= max_slots:
                return max_slots < MAX_RESERVATIONS
        return False

    def _all_releases(self) -> list[Release]:
        if self._sorted_releases is None:
            started = self._started
            releases = [
                (min(end, started.get(id(placement), inf)), placement)
                for end, placement in self.releases()
            ]
            self._sorted_releases = sorted(releases, key=lambda release: release[0])
        return self._sorted_releases

    def _earliest_slot(
        self, request: ResourceRequest, duration: float, releases: list[Release]
    ) -> BookedSlot | None:
        """Return the first time from which the request is free for this duration."""
        profile, released = self._profile(), 0
        for start in self._possible_starts(request, duration, releases):
            while released < len(releases) and releases[released][0] <= start:
                profile.release(releases[released][1])
                released += 1
            end = start + duration
            names = profile.nodes_with(gpus_needed(request))
            if len(names) < request.node_count:
                continue
            slots = [slot for slot in self._slots if slot.overlaps(start, end)]
            names = profile.nodes_with(gpus_needed(request), slots)
            if len(names) < request.node_count:
                continue
            free = Overlay(self.cluster)
            for _, placement in releases[:released]:
                for part in placement.parts:
                    if part.node in names:
                        free.release(Placement(part.node, part.allocations))
            if request.node_count == 1:
                self._withhold(free, slots, start, end, names)
                found = find_placement_on(free, names, request)
            else:
                self._withhold(free, slots, start, end)
                found = find_placement(free, request)
            if found is not None:
                chosen = prefer_busy_devices(request, found, free, self.cluster)
                return _booked_slot(start, duration, request, chosen)
        return None

    def _profile(self) -> _GpuProfile:
        """Return the GPUs that are free now."""
        nodes = ((name, self.cluster.node(name)) for name in self.cluster.node_names())
        return _GpuProfile(
            {
                name: {gpu.name: max(gpu.unallocated, 0) for gpu in node.types.get(GPU, ())}
                for name, node in nodes
                if node is not None
            }
        )

    def _possible_starts(
        self, request: ResourceRequest, duration: float, releases: list[Release]
    ) -> list[float]:
        """Return the times at which devices become free on nodes that may fit, in order."""
        idle = idle_cluster(self.cluster)
        # A job with the same request and no longer duration got no earlier slot.
        earliest = max(
            (
                slot.start
                for slot in self._slots
                if slot.request == request and slot.duration <= duration
            ),
            default=self.now,
        )
        slots = [(slot.end, slot.placement) for slot in self._slots]
        return sorted(
            {earliest}
            | {
                end
                for end, placement in (*releases, *slots)
                if end >= earliest
                and (
                    id(placement) in self._started
                    or any(may_hold(idle, part.node, request) for part in placement.parts)
                )
            }
        )

    def _withhold(
        self,
        ledger: Overlay,
        slots: list[BookedSlot],
        start: float,
        end: float,
        names: Container[str] | None = None,
    ) -> None:
        """Leave what no slot has at any time of an interval; given names, on these nodes."""
        shared: dict[_DeviceKey, list[_Change]] = {}
        for slot in slots:
            for part in slot.placement.parts:
                if names is not None and part.node not in names:
                    continue
                node, whole = ledger.writable(part.node), []
                for held in part.allocations:
                    if held.amount == node.by_name[held.type, held.device].facts.capacity:
                        whole.append(held)
                        continue
                    changes = shared.setdefault((part.node, held.type, held.device), [])
                    changes.append((max(slot.start, start), -held.amount, -held.memory))
                    if slot.end < inf:
                        changes.append((slot.end, held.amount, held.memory))
                ledger.withhold(Placement(part.node, tuple(whole)))
        if not shared:
            return
        for release, placement in self._all_releases():
            for part in placement.parts if start < release < end else ():
                for held in part.allocations:
                    if (key := (part.node, held.type, held.device)) in shared:
                        shared[key].append((release, held.amount, held.memory))
        for (name, type, device_name), changes in shared.items():
            device = ledger.writable(name).by_name[type, device_name]
            device.withhold(*_max_withheld(changes, end))


class _GpuProfile:
    """Free amounts of GPUs by node while running jobs are released: a quick test of slots."""

    def __init__(self, free: dict[str, dict[str, int]]) -> None:
        self._free = free
        self._total = {name: sum(gpus.values()) for name, gpus in free.items()}

    def release(self, placement: Placement) -> None:
        """Add what an attempt holds."""
        for part in placement.parts:
            gpus = self._free[part.node]
            for held in part.allocations:
                if held.type == GPU and held.device in gpus:
                    gpus[held.device] += held.amount
                    self._total[part.node] += held.amount

    def nodes_with(self, amount: int, slots: Sequence[BookedSlot] = ()) -> list[str]:
        """Return the nodes where this amount may be free beside the whole GPUs of slots."""
        if not slots:
            return [name for name, total in self._total.items() if total >= amount]
        free, withheld = self._free, dict.fromkeys(self._total, 0)
        for node, gpu in frozenset().union(*(slot.whole_gpus for slot in slots)):
            withheld[node] += free[node].get(gpu, 0)
        return [name for name, total in self._total.items() if total - withheld[name] >= amount]


_DeviceKey = tuple[str, str, str]
"""Node, type and name of a device."""
_Change = tuple[float, int, int]
"""Time at which a device has more or less free, by which amount, and how much of its memory."""


def _max_withheld(changes: list[_Change], end: float) -> tuple[int, int]:
    """Return by how much less is free at some time before the end than at the start."""
    amount = memory = 0
    min_amount = min_memory = 0
    for time, more, more_memory in sorted(changes, key=lambda change: (change[0], -change[1])):
        if end <= time < inf:
            break
        amount, memory = amount + more, memory + more_memory
        min_amount, min_memory = min(min_amount, amount), min(min_memory, memory)
    return -min_amount, -min_memory


def _duration(limit: int | None) -> float:
    return inf if limit is None else limit + KILL_GRACE_SECONDS
