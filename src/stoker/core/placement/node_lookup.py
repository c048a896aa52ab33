"""Node lookup by free amounts, for requests that depend on nothing else.

An amount-only request names no node and no device, so the free-capacity index finds its nodes. The
index does not contain the few nodes that an overlay has modified: their free resources are compared
one by one. Nodes with GPUs of several models and delegated nodes are scanned. All other requests
scan every node.
"""

from __future__ import annotations

from collections.abc import Iterator

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.fragmentation import ResourceDemand
from stoker.core.cluster.node import Node
from stoker.core.model.resources import ResourceRequest
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


def count_indexed(cluster: Cluster, demand: ResourceDemand, limit: int) -> int:
    """Return on how many unmodified nodes of the index a demand fits, at most `limit`."""
    modified, count = cluster.modified_nodes(), 0
    for group in cluster.free_index().fitting(demand):
        count += sum(name not in modified for _, name in group.members)
        if count >= limit:
            return limit
    return count


def scanned_nodes(cluster: Cluster, request: ResourceRequest) -> Iterator[Node]:
    """Yield the nodes whose free resources do not decide whether this request fits."""
    if not is_amount_only(request):
        yield from cluster.all_nodes()
        return
    modified = cluster.modified_nodes()
    for name in cluster.free_index().unindexed:
        if name not in modified:
            yield cluster.base.nodes[name]
    yield from (node for node in modified.values() if cluster.free_of(node) is None)
