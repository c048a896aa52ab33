"""Fit: the devices of one node that serve a request."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

from msgspec.structs import replace

from stoker.core.cluster.node import Device, Node
from stoker.core.model.resources import (
    GPU,
    SHARED_SLOT,
    DeviceAllocation,
    GpuRequest,
    Placement,
    ResourceRequest,
)
from stoker.core.model.units import THOUSAND
from stoker.core.placement.compatibility import allowed_devices, for_node, usable_gpus
from stoker.core.placement.infeasible import infeasibility_reason
from stoker.core.placement.request_shape import (
    delegated_request,
    non_gpu_amounts,
    undelegable_reason,
)


def fit(
    node: Node, request: ResourceRequest, remainder: int = 0
) -> tuple[DeviceAllocation, ...] | None:
    """Return what the request would get of this node now, or None if it does not fit.

    `remainder`: take a part of a GPU from one with this free amount, if there is one.
    """
    if not _accepts(node, request):
        return None
    if node.delegated:
        request = delegated_request(request)
    if request.exclusive:
        return _pick_whole_node(node, request)
    allocations: list[DeviceAllocation] = []
    if request.gpus is not None and request.gpus.amount:
        picked = _pick_gpus(node, request.gpus, remainder)
        if picked is None:
            return None
        allocations += picked
    for type, amount in non_gpu_amounts(request):
        picked = _pick_devices(allowed_devices(node, request, type), type, amount)
        if picked is None:
            return None
        allocations += picked
    return tuple(allocations)


def delegated_gang(nodes: Iterable[Node], request: ResourceRequest) -> Placement | None:
    """Return the placement of all parts of a gang on one delegated node; None: none takes it."""
    count = request.node_count
    for node in nodes if count > 1 else ():
        allocations = fit(node, request) if node.takes_gangs else None
        if allocations is not None and all(
            node.device(each).available >= each.amount * count for each in allocations
        ):
            part = Placement(node.name, allocations)
            return replace(part, other_parts=(part,) * (count - 1))
    return None


def _accepts(node: Node, request: ResourceRequest) -> bool:
    """Whether the node is available, and neither excluded nor delegated in a way that excludes."""
    if node.unavailable_reason is not None or node.name in request.not_nodes:
        return False
    if request.nodes and node.name not in request.nodes:
        return False
    return not node.delegated or undelegable_reason(request, node.takes_gangs) is None


def _pick_gpus(node: Node, gpus: GpuRequest, remainder: int) -> list[DeviceAllocation] | None:
    """Return whole GPUs in order of preference, and a part of a GPU where it wastes the least."""
    local = for_node(gpus, node.name)
    candidates = usable_gpus(node, local)
    if preferred := local.prefer or local.required or local.allowed:
        candidates.sort(key=lambda device: _preference(device, preferred))
    if gpus.fixed_share is not None:
        return _pick_fixed_share(candidates, gpus, gpus.fixed_share)
    if gpus.shareable:
        return _pick_shared_gpus(candidates, gpus)
    keep_order = bool(gpus.prefer or gpus.required)
    return _pick_devices(candidates, GPU, gpus.amount, gpus.memory or 0, keep_order, remainder)


def _pick_fixed_share(
    devices: list[Device], gpus: GpuRequest, share: int
) -> list[DeviceAllocation] | None:
    fitting = [device for device in devices if device.unallocated >= share]
    if len(fitting) < len(gpus.required):
        return None
    return [DeviceAllocation(GPU, device.name, share, gpus.memory or 0) for device in fitting]


def _pick_shared_gpus(devices: list[Device], gpus: GpuRequest) -> list[DeviceAllocation] | None:
    """Return GPUs to share by memory: idle ones first, then those with the fewest sharers."""
    count = gpus.amount // THOUSAND
    candidates = [
        device
        for device in devices
        if device.available == THOUSAND - device.sharers * SHARED_SLOT
        and not (gpus.on_idle_gpus and device.sharers)
    ]
    if len(candidates) < count:
        return None
    if not (gpus.prefer or gpus.required):
        candidates.sort(key=lambda device: (device.sharers, device.memory_free))
    memory = gpus.memory or 0
    return [
        DeviceAllocation(GPU, device.name, SHARED_SLOT, memory) for device in candidates[:count]
    ]


def _preference(device: Device, words: tuple[str, ...]) -> int:
    positions = (position for position, word in enumerate(words) if device.answers_to(word))
    return next(positions, len(words))


def _pick_devices(
    devices: list[Device],
    type: str,
    amount: int,
    memory: int = 0,
    keep_order: bool = False,
    remainder: int = 0,
) -> list[DeviceAllocation] | None:
    """Take an amount from devices: split over unit devices, never over larger ones."""
    free = [
        (device, device.unallocated - device.used_by_others)  # `available`, inlined
        for device in devices
        if device.drained is None and not device.removed
    ]
    if not all(device.is_unit for device, _ in free):
        fitting = [(left, device) for device, left in free if left >= amount]
        if not fitting:
            return None
        _, best = min(fitting, key=itemgetter(0))
        return [DeviceAllocation(type, best.name, amount, 0 if best.facts.is_pool else memory)]
    whole, part = divmod(amount, THOUSAND)
    chosen = [device for device, left in free if left == THOUSAND][:whole]
    if len(chosen) < whole:
        return None
    allocations = [DeviceAllocation(type, device.name, THOUSAND, memory) for device in chosen]
    if part:
        fitting = [
            (left, device)
            for device, left in free
            if left >= part and device not in chosen and not (type == GPU and device.sharers)
        ]
        if not fitting:
            return None
        # The fullest device that has enough, so that whole ones stay free, unless the caller
        # prefers a remainder or the request an order.
        preferred = [entry for entry in fitting if entry[0] == remainder] or fitting
        _, best = fitting[0] if keep_order else min(preferred, key=itemgetter(0))
        allocations.append(DeviceAllocation(type, best.name, part, memory))
    return allocations


def _pick_whole_node(node: Node, request: ResourceRequest) -> tuple[DeviceAllocation, ...] | None:
    """Return all devices of a node without allocations."""
    devices = [device for device in node.devices() if not device.removed]
    if any(device.unallocated != device.facts.capacity for device in node.devices()):
        return None
    if any(device.drained is not None for device in devices):
        return None
    ignore_foreign_use = request.gpus is not None and request.gpus.ignore_foreign_use
    if any(device.foreign_user is not None for device in devices) and not ignore_foreign_use:
        return None
    if infeasibility_reason(node, replace(request, exclusive=False)) is not None:
        return None
    return tuple(
        DeviceAllocation(device.type, device.name, device.unallocated, device.facts.memory or 0)
        for device in devices
        if device.unallocated
    )
