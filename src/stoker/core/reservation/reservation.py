"""The reservation of a blocked job: its earliest start, and the devices it will have.

Source: EASY (Lifka 1995). The shadow time is the time at which the running jobs have released
enough by their time limits or estimates; what the blocked job leaves free then may be used
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.node import Node
from stoker.core.cluster.overlay import Overlay
from stoker.core.model.resources import GPU, DeviceAllocation, Placement, ResourceRequest
from stoker.core.placement.advance import Occupation, without_reserved
from stoker.core.placement.capacity import free_gpus
from stoker.core.placement.fit import fit
from stoker.core.placement.horizon import exclude_ending_nodes
from stoker.core.placement.placer import find_placement
from stoker.core.placement.request_shape import gpus_needed, names_hardware
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
    cluster: Cluster,
    releases: Iterable[Release],
    request: ResourceRequest,
    needed_from_start: float = 0.0,
    occupation: tuple[Occupation, float] | None = None,
) -> Reservation | None:
    """Reserve the earliest start by the releases; None if even the last is not enough.

    Its nodes must exist until `needed_from_start` after the start, by the wall clock.
    `occupation`: how long it may run, and the difference between the clocks; by these, advance
    reservations of others exclude devices.

    A job with neither a time limit nor an estimate is released at infinity: the start is unknown,
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
        if may_fit:
            request_then = exclude_ending_nodes(cluster, request, end + needed_from_start)
            if occupation is not None:
                job, offset = occupation
                request_then = without_reserved(cluster, request_then, job, end + offset)
            reserved = find_placement(ledger, request_then)
            if reserved is not None:
                chosen = prefer_busy_devices(request_then, reserved, ledger, cluster)
                return Reservation(end, ledger, chosen)
        may_fit = False
    return None


def prefer_busy_devices(
    request: ResourceRequest, placement: Placement, future: Cluster, now: Cluster
) -> Placement:
    """Return a placement that is equivalent in the future ledger, on nodes and GPUs busy now."""
    if names_hardware(request):
        return placement
    parts = placement.parts
    if placement.other_parts:
        parts = _on_busier_nodes(parts, future, now)
    first, *others = (
        Placement(
            part.node, _busier_gpus(part.allocations, future.node(part.node), now.node(part.node))
        )
        for part in parts
    )
    return Placement(first.node, first.allocations, tuple(others))


def _on_busier_nodes(
    parts: tuple[Placement, ...], future: Cluster, now: Cluster
) -> tuple[Placement, ...]:
    names = [part.node for part in parts]
    free = {name: free_gpus(now, name) for name in (*future.modified_nodes(), *names)}

    def signature(name: str) -> object:
        node = future.node(name)
        return node.named_signature if node is not None else name

    twins = _busier_twins(names, free, signature)
    return tuple(Placement(twins.get(part.node, part.node), part.allocations) for part in parts)


def _busier_gpus(
    allocations: tuple[DeviceAllocation, ...], future: Node | None, now: Node | None
) -> tuple[DeviceAllocation, ...]:
    names = [allocation.device for allocation in allocations if allocation.type == GPU]
    if future is None or now is None or not names:
        return allocations
    free = {device.name: device.unallocated for device in now.types[GPU]}
    devices = future.by_name
    twins = _busier_twins(names, free, lambda name: devices[GPU, name].free_signature)
    return tuple(
        replace(allocation, device=twins.get(allocation.device, allocation.device))
        if allocation.type == GPU
        else allocation
        for allocation in allocations
    )


def _busier_twins(
    names: Iterable[str], free: dict[str, int], signature: Callable[[str], object]
) -> dict[str, str]:
    """Return a name of equal signature for each of which less is free now, if there is one."""
    chosen = sorted(set(names), key=lambda name: (-free[name], name))
    others = sorted(free.keys() - set(chosen), key=lambda name: (free[name], name))
    twins: dict[str, str] = {}
    for name in chosen:
        for other in others:
            if free[other] >= free[name]:
                break
            if signature(other) == signature(name):
                twins[name] = other
                others.remove(other)
                break
    return twins
