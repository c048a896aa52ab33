"""Placement: the node, or the nodes of a gang, where a request fits best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from heapq import nsmallest

from msgspec.structs import replace

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.fragmentation import (
    Cost,
    DemandHistogram,
    FreeResources,
    ResourceDemand,
    placement_cost,
)
from stoker.core.cluster.free_index import RankedNode
from stoker.core.cluster.node import Node
from stoker.core.model.resources import CPU, GPU, MEMORY, Placement, ResourceRequest
from stoker.core.placement.fit import delegated_gang, fit
from stoker.core.placement.node_lookup import demand_of, scanned_nodes
from stoker.core.placement.request_shape import is_amount_only

PackingScore = tuple[bool, int, float, int]
"""Smaller is better: delegated, free GPUs of the node, used share of its cores or memory, and of
equal nodes the one that joined first."""


def find_placement(cluster: Cluster, request: ResourceRequest) -> Placement | None:
    """Return devices that are free now, on the best node for this request; None: does not fit.

    The nodes with the lowest fragmentation cost come first; nodes that the index cannot describe
    follow, by packing score.
    """
    count, part = request.node_count, request.part
    if not is_amount_only(request):
        return find_placement_on(cluster, cluster.base.nodes, request)
    chosen = nsmallest(count, _ranked_nodes(cluster, demand_of(cluster, request), count))
    parts = [_part_on(cluster, name, part, cost[-1]) for cost, _, name in chosen]
    if len(parts) < count:
        parts += _packed(scanned_nodes(cluster, request), part, count - len(parts))
    return _join(parts, count) or delegated_gang(scanned_nodes(cluster, request), request)


def find_placement_on(
    cluster: Cluster, names: Iterable[str], request: ResourceRequest
) -> Placement | None:
    """Return devices that are free now, on the best of the named nodes."""
    nodes = [node for name in names if (node := cluster.node(name)) is not None]
    placement = _join(_packed(nodes, request.part, request.node_count), request.node_count)
    return placement or delegated_gang(nodes, request)


def _ranked_nodes(cluster: Cluster, demand: ResourceDemand, count: int) -> Iterator[RankedNode]:
    """Yield nodes where a demand fits, of nodes with equal free resources at most `count`."""
    modified, histogram = cluster.modified_nodes(), cluster.demand_histogram
    yield from cluster.free_index().ranked(demand, histogram, count, modified)
    for node, free in cluster.modified_free():
        cost = _cost(free, demand, histogram, histogram.version)
        if cost is not None:
            yield cost, node.join_index, node.name


@lru_cache(maxsize=1024)
def _cost(
    free: FreeResources, demand: ResourceDemand, histogram: DemandHistogram, _version: int
) -> Cost | None:
    """Return the cost of a placement; a plan asks for the same few nodes again and again."""
    return placement_cost(free, demand, histogram)


def _part_on(cluster: Cluster, name: str, part: ResourceRequest, remainder: int) -> Placement:
    """Return the devices of a node that has enough."""
    node = cluster.node(name)
    allocations = fit(node, part, remainder) if node is not None else None
    assert allocations is not None
    return Placement(name, allocations)


def _packed(nodes: Iterable[Node], part: ResourceRequest, count: int) -> list[Placement]:
    """Return the feasible nodes with the best packing scores, at most `count`."""
    feasible = [
        (node, allocations) for node in nodes if (allocations := fit(node, part)) is not None
    ]
    if len(feasible) > 1:
        feasible = nsmallest(count, feasible, lambda row: _packing_score(row[0], part))
    return [Placement(node.name, allocations) for node, allocations in feasible]


def _join(parts: list[Placement], count: int) -> Placement | None:
    """Return the placement of all parts, or None if some are missing."""
    if len(parts) < count:
        return None
    return parts[0] if count == 1 else replace(parts[0], other_parts=tuple(parts[1:]))


def _packing_score(node: Node, request: ResourceRequest) -> PackingScore:
    """Return the score of a node: GPU jobs fill nodes up, other jobs go to the least loaded one.

    Nodes on which a start waits in the queue of another scheduler come last.
    """
    gpus = 0
    if request.gpus is not None and request.gpus.amount:
        gpus = sum(
            device.unallocated
            for device in node.types.get(GPU, ())
            if device.foreign_user is None and device.drained is None and not device.removed
        )
    pools = (*node.types.get(CPU, ()), *node.types.get(MEMORY, ()))
    shares = [1 - pool.available / pool.facts.capacity for pool in pools if pool.facts.capacity]
    return node.delegated, gpus, max(shares, default=0.0), node.join_index
