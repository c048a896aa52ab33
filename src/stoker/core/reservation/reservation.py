"""The reservation of a blocked job: when it can start at the latest, and on which devices.

Source: EASY (Lifka 1995). The shadow time is the time at which the running jobs have released
enough by their time limits; what the blocked job leaves free then may be used meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.overlay import Overlay
from stoker.core.model.hardware import Placement
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.placement.capacity import count_feasible_nodes, free_gpus
from stoker.core.placement.fit import fit
from stoker.core.placement.placer import find_placement
from stoker.core.placement.request_shape import gpus_needed
from stoker.core.reservation.device_choice import prefer_busy_devices
from stoker.core.running.release_times import KILL_GRACE_SECONDS, Release

Releases = Callable[[], Iterable[Release]]
"""Returns the latest end and the placement of each running attempt, the first end first."""


class Reservation:
    """The shadow time of a blocked job, and its nodes as they are once it has started."""

    def __init__(self, shadow_time: float, ledger: Overlay, placement: Placement) -> None:
        """`ledger`: the ledger at the shadow time."""
        self.shadow_time = shadow_time
        ledger.allocate(placement)
        self._nodes_after_start = {part.node: ledger.nodes[part.node] for part in placement.parts}

    def allocate(self, placement: Placement) -> None:
        """Note that a job starts beside the reservation and may still run at the shadow time."""
        for part in placement.parts:
            if (node := self._nodes_after_start.get(part.node)) is not None:
                node.allocate(part.allocations)

    def ends_before(self, now: float, limit: int | None) -> bool:
        """Whether a job that starts now ends by the shadow time at the latest."""
        return limit is not None and now + limit + KILL_GRACE_SECONDS <= self.shadow_time

    def backfill_capacity(self, ledger: Cluster) -> Cluster:
        """Return what is free in a ledger and stays free after the blocked job has started."""
        capacity = Overlay(ledger)
        for name, node in self._nodes_after_start.items():
            for device in capacity.writable(name).devices():
                after = node.by_name.get((device.type, device.name))
                if after is not None:
                    device.limit_to(after)
        return capacity


def reserve(
    cluster: Cluster, releases: Iterable[Release], request: ResourceRequest
) -> Reservation | None:
    """Reserve the earliest start by the releases; None if even the last is not enough.

    A job without a time limit is released at infinity. Then the start is unknown, but the devices
    are still reserved: only jobs with a limit, or jobs beside the reservation, may start.
    """
    simulation = _ReleaseSimulation(cluster, request)
    for end, placement in releases:
        for part in placement.parts:
            simulation.release(part)
        reserved = simulation.placement()
        if reserved is not None:
            ledger = simulation.ledger
            return Reservation(end, ledger, prefer_busy_devices(request, reserved, ledger, cluster))
    return None


class _ReleaseSimulation:
    """The nodes that fit a request while running jobs are released one by one."""

    def __init__(self, cluster: Cluster, request: ResourceRequest) -> None:
        self.cluster, self.request = cluster, request
        self.ledger = Overlay(cluster)
        """The ledger with the releases on nodes that may fit."""
        self._node_part = request.part
        self._feasible_now = count_feasible_nodes(cluster, request)
        self._newly_feasible: set[str] = set()
        self._pending_releases: dict[str, list[Placement]] = {}
        """Releases on nodes that have too few GPUs so far."""
        self._free_gpus: dict[str, int] = {}

    def release(self, part: Placement) -> None:
        """Release what an attempt holds of one node."""
        name = part.node
        free = self._free_gpus.get(name)
        if free is None:
            free = free_gpus(self.cluster, name)
        free += sum([held.amount for held in part.allocations if held.type == GPU])
        self._free_gpus[name] = free
        self._pending_releases.setdefault(name, []).append(part)
        if free >= gpus_needed(self.request):
            self._apply_releases(name)

    def _apply_releases(self, name: str) -> None:
        node, node_now = self.ledger.writable(name), self.cluster.node(name)
        for part in self._pending_releases.pop(name):
            node.release(part.allocations)
        if name in self._newly_feasible or fit(node, self._node_part) is None:
            return
        if node_now is None or fit(node_now, self._node_part) is None:
            self._newly_feasible.add(name)

    def placement(self) -> Placement | None:
        """Return a placement of the request after the releases so far."""
        if self._feasible_now + len(self._newly_feasible) < self.request.node_count:
            return None
        return find_placement(self.ledger, self.request)
