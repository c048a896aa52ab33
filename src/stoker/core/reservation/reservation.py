"""The reservation of a blocked job: when it can start at the latest, and on which devices.

Source: EASY (Lifka 1995). The shadow time is the time at which the running jobs have released
enough by their time limits or estimates; what the blocked job leaves free then may be used
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.overlay import Overlay
from stoker.core.model.hardware import Placement
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.placement.capacity import free_gpus
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

    A job without a time limit and an estimate is released at infinity. Then the start is unknown,
    but the devices are still reserved: only jobs with a limit, or jobs beside the reservation, may
    start.
    """
    ledger, needed = Overlay(cluster), gpus_needed(request)
    free: dict[str, int] = {}
    waiting: dict[str, list[Placement]] = {}
    may_fit = find_placement(cluster, request) is not None
    for end, placement in releases:
        for part in placement.parts:
            name, gpus = part.node, sum([a.amount for a in part.allocations if a.type == GPU])
            free[name] = gpus + (free[name] if name in free else free_gpus(cluster, name))
            waiting.setdefault(name, []).append(part)
            if free[name] >= needed:  # otherwise the node is not copied yet
                node = ledger.writable(name)
                for released in waiting.pop(name):
                    node.release(released.allocations)
                may_fit = may_fit or fit(node, request.part) is not None
        reserved = find_placement(ledger, request) if may_fit else None
        if reserved is not None:
            return Reservation(end, ledger, prefer_busy_devices(request, reserved, ledger, cluster))
        may_fit = False
    return None
