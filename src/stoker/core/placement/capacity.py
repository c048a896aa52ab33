"""Capacity: how much of a request fits, without a choice of devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.fragmentation import ResourceDemand, fits, max_request_amount
from stoker.core.cluster.node import Node
from stoker.core.model.resources import CPU, GPU, MEMORY, ResourceRequest
from stoker.core.placement.fit import fit, max_request
from stoker.core.placement.node_lookup import count_indexed, demand_of, scanned_nodes
from stoker.core.placement.request_shape import is_amount_only, non_gpu_amounts
from stoker.core.structures.amounts import Amounts, CapacityTest, fits_within


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


def count_feasible_nodes(cluster: Cluster, request: ResourceRequest) -> int:
    """Return on how many nodes a part of this request fits now, at most its number of parts."""
    part, count = request.part, request.node_count
    feasible = sum(fit(node, part) is not None for node in scanned_nodes(cluster, request))
    if is_amount_only(request):
        demand = demand_of(cluster, request)
        feasible += sum(fits(free, demand) for _, free in cluster.modified_free())
        if feasible < count:
            feasible += count_indexed(cluster, demand, count - feasible)
    return min(feasible, count)


def capacity_test(cluster: Cluster, shape: ResourceRequest) -> CapacityTest:
    """Return a test whether a request of this shape fits that needs given amounts.

    Conditions other than amounts, such as a time limit, are not tested.
    """
    demand = demand_of(cluster, shape) if is_amount_only(shape) else None
    scanned = Counter(_max_requests(cluster, shape, demand))
    fitting: set[Amounts] = set()
    too_large: list[Amounts] = []  # minimal ones that do not fit; 0.3 µs each, a query 0.3 ms
    length = len(non_gpu_amounts(shape)) + (shape.gpus is not None)
    delegated = list(_max_delegated_gangs(cluster, shape))

    def test(needed: Amounts) -> bool:
        needed = needed[:length]
        if needed in fitting:
            return True
        for smaller in too_large:
            if fits_within(smaller, needed):
                return False
        part = _per_node(needed, shape)
        missing = _missing(scanned, shape, part)
        if missing and demand is not None:
            missing -= count_indexed(cluster, _sized(demand, shape, part), missing)
        if not missing or any(fits_within(_in_all(needed, shape), most) for most in delegated):
            fitting.add(needed)
            return True
        too_large[:] = [amounts for amounts in too_large if not fits_within(needed, amounts)]
        too_large.append(needed)
        return False

    return test


def _max_requests(
    cluster: Cluster, shape: ResourceRequest, demand: ResourceDemand | None
) -> Iterator[tuple[int, ...]]:
    """Yield the largest amounts of a shape on each node that is not in the index as it is."""
    for node in scanned_nodes(cluster, shape):
        if node.delegated and shape.node_count > 1:
            continue
        if (amounts := max_request(node, shape)) is not None:
            yield amounts
    if demand is None:
        return
    for _, free in cluster.modified_free():
        if not demand.models or free.model in demand.models:
            by_type = {CPU: free.cpu, MEMORY: free.mem, **dict(free.more)}
            others = [by_type.get(type, 0) for type, _ in non_gpu_amounts(shape)]
            yield (max_request_amount(free.gpus), *others) if shape.gpus else tuple(others)


def _max_delegated_gangs(cluster: Cluster, shape: ResourceRequest) -> Iterator[Amounts]:
    """Yield the largest amounts of all parts of a gang on each delegated node that takes gangs."""
    for node in scanned_nodes(cluster, shape) if shape.node_count > 1 else ():
        if node.takes_gangs and (amounts := max_request(node, shape)) is not None:
            yield amounts


def _missing(scanned: Counter[tuple[int, ...]], shape: ResourceRequest, part: Amounts) -> int:
    """Return how many parts do not fit on the scanned nodes."""
    missing = shape.node_count
    for amounts, count in scanned.items():
        if fits_within(part, amounts):
            missing -= count
            if missing <= 0:
                return 0
    return missing


def _sized(demand: ResourceDemand, shape: ResourceRequest, part: Amounts) -> ResourceDemand:
    """Return a demand with amounts in the order of `request_amounts`."""
    amounts: Iterator[Any] = iter(part)
    gpus = next(amounts) if shape.gpus is not None else 0
    named = {type: next(amounts) for type, _ in non_gpu_amounts(shape)}
    cpu, mem = named.pop(CPU, 0), named.pop(MEMORY, 0)
    return ResourceDemand(gpus, cpu, mem, demand.models, tuple(named.items()))


def _per_node(needed: Amounts, shape: ResourceRequest) -> Amounts:
    """Return the amounts of one part; GPUs are counted for all parts together."""
    if shape.node_count == 1 or shape.gpus is None:
        return needed
    return (needed[0] // shape.node_count, *needed[1:])


def _in_all(needed: Amounts, shape: ResourceRequest) -> Amounts:
    """Return the amounts of all parts; those of GPUs are that already."""
    gpus = 0 if shape.gpus is None else 1
    return (*needed[:gpus], *(amount * shape.node_count for amount in needed[gpus:]))
