"""Node lookup by free amounts, for requests that depend on nothing else.

An amount-only request names no node and no device, so the free-capacity index finds its nodes. The
index does not contain nodes with GPUs of several models, delegated nodes, and nodes that an overlay
has modified; those few are scanned. All other requests scan every node.
"""

from __future__ import annotations

from collections.abc import Iterator

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.fragmentation import FreeResources, ResourceDemand
from stoker.core.cluster.free_index import FreeCapacityIndex
from stoker.core.cluster.node import Device, Node
from stoker.core.model.resources import CPU, GPU, MEMORY, ResourceRequest
from stoker.core.model.units import THOUSAND
from stoker.core.placement.request_shape import is_amount_only, matches_model

NO_MODEL = "nowhere"
"""Stands for the models of a request that no GPU matches."""


def demand_of(cluster: Cluster, request: ResourceRequest) -> ResourceDemand:
    """Return a request, or one part of a gang, as the index compares it."""
    gpus, gpu_models = request.gpus, cluster.base.gpu_models
    models: tuple[str, ...] = ()
    if gpus is not None and (gpus.model or gpus.models or gpus.min_vram):
        models = tuple(
            sorted(name for name, facts in gpu_models.items() if matches_model(facts, gpus))
        )
        models = () if len(models) == len(gpu_models) else models or (NO_MODEL,)
    named = tuple((name, amount) for name, amount in request.named if amount)
    amount = gpus.amount if gpus is not None else 0
    return ResourceDemand(amount, request.cpus, request.memory, models, named)


def record_demand(cluster: Cluster, request: ResourceRequest) -> None:
    """Count a submitted request in the demand histogram."""
    if is_amount_only(request):
        cluster.demand_histogram.record(demand_of(cluster, request))


def uses_index(cluster: Cluster, request: ResourceRequest) -> bool:
    """Whether the index finds nodes for a request, so that not all nodes are scanned."""
    return len(cluster.base.nodes) > 1 and is_amount_only(request)


def refresh_index(cluster: Cluster) -> FreeCapacityIndex:
    """Return the index of the base ledger after applying all changes of nodes."""
    base = cluster.base
    for name in base.changes.since(base.index_cursor):
        node = base.nodes.get(name)
        free = free_resources(node) if node is not None else None
        base.mixed_model_nodes.pop(name, None)
        if free is not None:
            base.free_index.update(name, free)
        else:
            if base.free_index.free_resources(name) is not None:
                base.free_index.remove(name)
            if node is not None and node.unavailable_reason is None:
                base.mixed_model_nodes[name] = None
    base.index_cursor = base.changes.end
    return base.free_index


def free_resources(node: Node) -> FreeResources | None:
    """Return the free amounts of a node; None if it is unavailable or not for the index."""
    if node.unavailable_reason is not None or node.delegated:
        return None
    gpus, first = [], None
    for device in node.types.get(GPU, ()):
        if device.removed or device.drained is not None or device.foreign_user is not None:
            continue
        first = first or device
        if device.kind != first.kind or device.facts.capacity != THOUSAND:
            return None
        gpus.append(0 if device.sharers else max(device.available, 0))
    gpus.sort(reverse=True)
    amounts = {type: max(max_amount(node.types[type]), 0) for type in node.types if type != GPU}
    cpu, mem = amounts.pop(CPU, 0), amounts.pop(MEMORY, 0)
    model = first.facts.model_key if first is not None else ""
    return FreeResources(tuple(gpus), cpu, mem, model, tuple(sorted(amounts.items())))


def max_amount(devices: list[Device]) -> int:
    """Return the largest amount that these devices can serve now; all smaller ones fit too."""
    whole = part = largest = 0
    unit = True
    for device in devices:
        if device.drained is None and not device.removed:
            # Not `device.available`: the call would be a third of the cost of this loop.
            left = device.unallocated - device.used_by_others
            unit = unit and device.facts.capacity == THOUSAND
            largest = max(largest, left)
            if left == THOUSAND:
                whole += 1
            elif left > part and not (device.type == GPU and device.sharers):
                part = left
    return whole * THOUSAND + part if unit else largest


def indexed_nodes(cluster: Cluster, demand: ResourceDemand) -> Iterator[str]:
    """Yield nodes of the index where a demand fits, except modified ones; the fullest first."""
    modified, index = cluster.modified_nodes(), refresh_index(cluster)
    for name in index.fitting(demand):
        if name not in modified:
            yield name


def scanned_nodes(cluster: Cluster, request: ResourceRequest) -> Iterator[Node]:
    """Yield the nodes that `indexed_nodes` does not cover for this request."""
    if not uses_index(cluster, request):
        yield from cluster.all_nodes()
        return
    modified = cluster.modified_nodes()
    refresh_index(cluster)
    for name in cluster.base.mixed_model_nodes:
        if name not in modified:
            yield cluster.base.nodes[name]
    yield from modified.values()
