"""Why a request can never be satisfied on a node."""

from __future__ import annotations

from stoker.core.cluster.node import Node
from stoker.core.model.resources import GPU, MEMORY, GpuRequest, ResourceRequest
from stoker.core.model.units import THOUSAND, format_amount
from stoker.core.placement.compatibility import allowed_devices, for_node, is_compatible
from stoker.core.placement.request_shape import (
    delegated_request,
    non_gpu_amounts,
    undelegable_reason,
)


def infeasibility_reason(node: Node, request: ResourceRequest) -> str | None:
    """Return what an idle node lacks for (a part of) this request; None: it could serve it."""
    if request.nodes and node.name not in request.nodes:
        return "is not one of the requested nodes"
    if node.name in request.not_nodes:
        return "is excluded"
    if node.delegated:
        if (lack := undelegable_reason(request, node.takes_gangs)) is not None:
            return lack
        request = delegated_request(request)
    gpus = request.gpus
    if gpus is not None and gpus.amount and (lack := _gpu_infeasibility(node, gpus)) is not None:
        return lack
    for type, amount in non_gpu_amounts(request):
        devices = [device for device in allowed_devices(node, request, type) if not device.removed]
        if not devices:
            return f"has no resource '{type}'"
        capacities = [device.facts.capacity for device in devices]
        unit = all(capacity == THOUSAND for capacity in capacities)
        largest = sum(capacities) if unit else max(capacities)
        if amount > largest:
            shown = (lambda n: f"{n} MiB") if type == MEMORY else format_amount
            split = "" if unit or len(devices) == 1 else " on one device"
            return f"has {shown(largest)} {type}{split} in all, not {shown(amount)}"
    return None


def max_parts(node: Node, request: ResourceRequest) -> int:
    """Return how many parts of a request an idle node, or those it stands for, could run."""
    if infeasibility_reason(node, request) is not None:
        return 0
    return request.node_count if node.takes_gangs else node.on_demand or 1


def _gpu_infeasibility(node: Node, gpus: GpuRequest) -> str | None:
    devices = [device for device in node.types.get(GPU, ()) if not device.removed]
    if not devices:
        return "has no GPU"
    local = for_node(gpus, node.name)
    fitting = [device for device in devices if is_compatible(device, local)]
    needed = len(gpus.required) if gpus.fixed_share is not None else -(-gpus.amount // THOUSAND)
    if all(device.facts.capacity == THOUSAND and not device.facts.is_pool for device in fitting):
        if len(fitting) >= needed:
            return None
    elif any(device.facts.capacity >= gpus.amount for device in fitting):
        return None
    traits = []
    if gpus.allowed_models:
        traits.append(f"of model {' or '.join(gpus.allowed_models)}")
    if gpus.min_vram:
        traits.append(f"with {gpus.min_vram} MiB")
    if gpus.memory is not None:
        if all(device.facts.memory is None for device in devices):
            return "has declared GPUs whose memory size is not known"
        traits.append(f"with {gpus.memory} MiB")
    if gpus.required or gpus.avoid or gpus.allowed:
        traits.append("among those named")
    kind = " " + " and ".join(traits) if traits else ""
    pools = [device.facts.capacity // THOUSAND for device in fitting if device.facts.is_pool]
    count = max(pools, default=len(fitting))
    return f"has {count} GPU{'s' * (count != 1)}{kind}, not {format_amount(gpus.amount)}"
