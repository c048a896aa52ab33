"""The horizon: a node with an end is excluded from requests that would still need it then."""

from __future__ import annotations

from collections.abc import Container

from msgspec.structs import replace

from stoker.core.cluster.cluster import Cluster
from stoker.core.model.resources import ResourceRequest

END_GRACE_SECONDS = 120.0
"""Seconds before the end of a node at which its jobs are asked to stop: no job that starts may need
the node any longer."""


def usable_until(cluster: Cluster, name: str, time: float) -> bool:
    """Whether jobs can use a node until this time (wall clock)."""
    end = cluster.base.node_ends.get(name)
    return end is None or time < end - END_GRACE_SECONDS


def exclude_ending_nodes(
    cluster: Cluster, request: ResourceRequest, time: float, keep: Container[str] = ()
) -> ResourceRequest:
    """Return a request without the nodes that cannot be used until this time (wall clock).

    `keep`: nodes that are not excluded.
    """
    ends = cluster.base.node_ends
    if not ends:
        return request
    ending = [name for name in ends if name not in keep and not usable_until(cluster, name, time)]
    if not ending:
        return request
    return replace(request, not_nodes=tuple(dict.fromkeys((*request.not_nodes, *ending))))
