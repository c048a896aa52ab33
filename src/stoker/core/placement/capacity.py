"""Capacity: how much of a request fits, without a choice of devices."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from msgspec.structs import replace

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.fragmentation import FreeResources, fits
from stoker.core.cluster.node import Node
from stoker.core.model.resources import CPU, GPU, MEMORY, ResourceRequest
from stoker.core.placement.fit import delegated_gang, fit
from stoker.core.placement.node_lookup import count_indexed, demand_of, scanned_nodes
from stoker.core.placement.request_shape import is_amount_only, non_gpu_amounts
from stoker.core.structures import Amounts, CapacityTest, fits_within


def available_on(node: Node, type: str) -> dict[str, int]:
    """Return the available amount of each device of a type that is neither removed nor drained."""
    return {
        device.name: device.unallocated - device.used_by_others  # inlined: called per threshold
        for device in node.types.get(type, ())
        if not device.removed and device.drained is None
    }


def total_available(node: Node, type: str) -> int:
    """Return the available amount of all devices of a type."""
    return sum(available_on(node, type).values()) if type in node.types else 0


def free_gpus(cluster: Cluster, name: str) -> int:
    """Return the available amount of all GPUs of a node."""
    node = cluster.node(name)
    total = 0
    for device in node.types.get(GPU, ()) if node is not None else ():
        total += device.unallocated - device.used_by_others  # inlined: called per node and job
    return total


def count_feasible_nodes(
    cluster: Cluster, request: ResourceRequest, modified: Iterable[FreeResources] | None = None
) -> int:
    """Return on how many nodes a part of this request fits now, at most its number of parts.

    `modified`: what is free on the nodes that differ from the base ledger, if it is known.
    """
    part, count = request.part, request.node_count
    fitting = (node for node in scanned_nodes(cluster, request) if fit(node, part) is not None)
    feasible = sum(1 for _ in islice(fitting, count))
    if feasible < count and is_amount_only(request):
        demand = demand_of(cluster, request)
        if modified is None:
            modified = (free for _, free in cluster.modified_free())
        feasible += sum(fits(free, demand) for free in modified)
        if feasible < count:
            feasible += count_indexed(cluster, demand, count - feasible)
    if feasible < count and delegated_gang(scanned_nodes(cluster, request), request) is not None:
        return count
    return min(feasible, count)


def capacity_test(cluster: Cluster, shape: ResourceRequest) -> CapacityTest:
    """Return a test whether a request of this shape fits that needs given amounts.

    Conditions other than amounts, such as a time limit, are not tested.
    """
    modified = [free for _, free in cluster.modified_free()]
    fitting: set[Amounts] = set()
    too_large: list[Amounts] = []  # minimal ones that do not fit; 0.3 µs each, a query 0.3 ms
    length = len(non_gpu_amounts(shape)) + (shape.gpus is not None)

    def test(needed: Amounts) -> bool:
        needed = needed[:length]
        if needed in fitting:
            return True
        for smaller in too_large:
            if fits_within(smaller, needed):
                return False
        request = _with_amounts(shape, needed)
        if count_feasible_nodes(cluster, request, modified) == request.node_count:
            fitting.add(needed)
            return True
        too_large[:] = [amounts for amounts in too_large if not fits_within(needed, amounts)]
        too_large.append(needed)
        return False

    return test


def _with_amounts(shape: ResourceRequest, amounts: Amounts) -> ResourceRequest:
    """Return a request of a shape with these amounts: the inverse of `request_amounts`."""
    given = map(int, amounts)
    gpus = shape.gpus
    if gpus is not None:
        gpus = replace(gpus, amount=next(given) // shape.node_count)
    by_type = {type: next(given) for type, _ in non_gpu_amounts(shape)}
    cpus, memory = by_type.pop(CPU, 0), by_type.pop(MEMORY, 0)
    return replace(shape, gpus=gpus, cpus=cpus, memory=memory, named=tuple(by_type.items()))
