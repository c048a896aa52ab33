"""Choice of devices for a reservation: prefer those in use now, leave idle ones to backfill."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.node import Node
from stoker.core.model.hardware import DeviceAllocation, Placement
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.placement.capacity import free_gpus
from stoker.core.placement.request_shape import names_hardware


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

    def are_equivalent(one: str, other: str) -> bool:
        node, other_node = future.node(one), future.node(other)
        if node is None or other_node is None:
            return False
        return node.named_signature == other_node.named_signature

    twins = _busier_twins(names, free, are_equivalent)
    return tuple(Placement(twins.get(part.node, part.node), part.allocations) for part in parts)


def _busier_gpus(
    allocations: tuple[DeviceAllocation, ...], future: Node | None, now: Node | None
) -> tuple[DeviceAllocation, ...]:
    names = [allocation.device for allocation in allocations if allocation.type == GPU]
    if future is None or now is None or not names:
        return allocations
    free = {device.name: device.unallocated for device in now.types[GPU]}
    signatures = {device.name: device.free_signature for device in future.types[GPU]}
    twins = _busier_twins(names, free, lambda one, other: signatures[one] == signatures[other])
    return tuple(
        replace(allocation, device=twins.get(allocation.device, allocation.device))
        if allocation.type == GPU
        else allocation
        for allocation in allocations
    )


def _busier_twins(
    names: Iterable[str], free: dict[str, int], are_equivalent: Callable[[str, str], bool]
) -> dict[str, str]:
    """Return an equivalent for each name of which less is free now, if there is one."""
    chosen = sorted(set(names), key=lambda name: (-free[name], name))
    others = sorted(free.keys() - set(chosen), key=lambda name: (free[name], name))
    twins: dict[str, str] = {}
    for name in chosen:
        for other in others:
            if free[other] >= free[name]:
                break
            if are_equivalent(other, name):
                twins[name] = other
                others.remove(other)
                break
    return twins
