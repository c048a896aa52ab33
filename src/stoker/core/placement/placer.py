"""Placement: the node, or the nodes of a gang, where a request fits best."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from itertools import islice
from operator import itemgetter

from msgspec.structs import replace

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.fragmentation import ResourceDemand, placement_cost
from stoker.core.cluster.node import Device, Node
from stoker.core.model.hardware import DeviceAllocation, Placement
from stoker.core.model.resources import CPU, GPU, MEMORY, ResourceRequest
from stoker.core.model.units import THOUSAND
from stoker.core.placement.fit import fit
from stoker.core.placement.node_lookup import (
    demand_of,
    free_resources,
    indexed_nodes,
    max_amount,
    refresh_index,
    scanned_nodes,
    uses_index,
)

DELEGATED_PENALTY = 1 << 40
"""Thousandths of GPUs, more than any node has: ranks a delegated node behind all others."""

PackingScore = tuple[int, float]
"""Smaller is better: free GPUs of the node, then the used share of its cores or memory."""


def find_placement(cluster: Cluster, request: ResourceRequest) -> Placement | None:
    """Return devices that are free now, on the best node for this request; None: does not fit."""
    if uses_index(cluster, request) and not _goes_to_least_loaded(cluster, request):
        return _place_by_index(cluster, request)
    return _place_by_scan(cluster.all_nodes(), request)


def _goes_to_least_loaded(cluster: Cluster, request: ResourceRequest) -> bool:
    """Whether a job without GPUs is spread: where models differ, it must not strand scarce GPUs."""
    return not request.gpu_amount and len(cluster.base.gpu_models) <= 1


def find_placement_on(
    cluster: Cluster, names: Iterable[str], request: ResourceRequest
) -> Placement | None:
    """Return devices that are free now, on the best of the named nodes."""
    nodes = (node for name in names if (node := cluster.node(name)) is not None)
    return _place_by_scan(nodes, request)


def _place_by_scan(nodes: Iterable[Node], request: ResourceRequest) -> Placement | None:
    """Return the best of the feasible nodes, or as many as a gang has parts, by packing score."""
    part, count = request.part, request.node_count
    feasible = [
        (_packing_score(node, part), node.join_index, node, allocations)
        for node in nodes
        if (allocations := fit(node, part)) is not None
    ]
    best = nsmallest(count, feasible, key=itemgetter(0, 1))
    return _join([Placement(node.name, takes) for *_, node, takes in best], count)


def _place_by_index(cluster: Cluster, request: ResourceRequest) -> Placement | None:
    """Place on the nodes with the lowest fragmentation cost; in an overlay, on the fullest."""
    demand, count = demand_of(cluster, request), request.node_count
    part, is_base = request.part, cluster.base is cluster
    if is_base:
        names = refresh_index(cluster).best(demand, cluster.demand_histogram, count)
    else:
        names = list(islice(indexed_nodes(cluster, demand), count))
    nodes = [node for name in names if (node := cluster.node(name)) is not None]
    scanned = [] if nodes and is_base else scanned_nodes(cluster, request)
    if feasible := [node for node in scanned if fit(node, part) is not None]:
        nodes = sorted(nodes + feasible, key=_fullness)
    parts = (
        Placement(node.name, _fit_remainder(cluster, node, part, demand)) for node in nodes[:count]
    )
    return _join(list(parts), count)


def _join(parts: list[Placement], count: int) -> Placement | None:
    """Return the placement of all parts, or None if some are missing."""
    if len(parts) < count:
        return None
    return parts[0] if count == 1 else replace(parts[0], other_parts=tuple(parts[1:]))


def _fit_remainder(
    cluster: Cluster, node: Node, request: ResourceRequest, demand: ResourceDemand
) -> tuple[DeviceAllocation, ...]:
    """Fit a request on a node that has enough, its part of a GPU where it costs least."""
    remainder = 0
    if demand.gpus % THOUSAND and cluster.base is cluster:
        free = cluster.free_index.free_resources(node.name)
        if free is not None:
            remainder = placement_cost(free, demand, cluster.demand_histogram)[1]
    allocations = fit(node, request, remainder)
    assert allocations is not None
    return allocations


def _fullness(node: Node) -> tuple[int, int, int]:
    """Return the order of nodes in a what-if, as in the index: the fewest free GPUs, then cores.

    It does not depend on which nodes the what-if has modified.
    """
    free = free_resources(node)
    if free is not None:
        return sum(free.gpus), free.cpu, node.join_index
    gpus = DELEGATED_PENALTY if node.delegated else 0
    gpus += sum(device.allocatable for device in node.types.get(GPU, ()))
    return gpus, max(max_amount(node.types.get(CPU, [])), 0), node.join_index


def _packing_score(node: Node, request: ResourceRequest) -> PackingScore:
    """Return the score of a node: GPU jobs fill nodes up, other jobs go to the least loaded one.

    Nodes on which a start waits in the queue of another scheduler come last.
    """
    gpus = DELEGATED_PENALTY if node.delegated else 0
    if request.gpus is not None and request.gpus.amount:
        gpus += sum(
            device.unallocated
            for device in node.types.get(GPU, ())
            if device.foreign_user is None and device.drained is None and not device.removed
        )
    return gpus, max(map(_used_share, node.devices()), default=0.0)


def _used_share(device: Device) -> float:
    if device.type not in (CPU, MEMORY) or not device.facts.capacity:
        return 0.0
    return 1 - device.available / device.facts.capacity
