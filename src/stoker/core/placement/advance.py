"""Exclude what advance reservations keep for others while a job would hold devices."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.node import ALL_DEVICES
from stoker.core.model.advance import AdvanceReservation
from stoker.core.model.resources import Placement, ResourceRequest


class Occupation(NamedTuple):
    """The user, groups and queue of a job, by keys, and how long it may hold devices."""

    keys: tuple[str, ...]
    seconds: float
    """0: it can be preempted at any time."""


def blocking_reservations(
    cluster: Cluster, occupation: Occupation, start: float
) -> list[AdvanceReservation]:
    """Return the reservations of others that a job would overlap if it started at a time."""
    end = start + occupation.seconds
    return [
        each
        for each in cluster.base.advance_reservations
        if each.overlaps(start, end) and not each.admits(occupation.keys)
    ]


def without_reserved(
    cluster: Cluster,
    request: ResourceRequest,
    occupation: Occupation,
    start: float,
    keep: Container[str] = (),
) -> ResourceRequest:
    """Return a request without what is reserved for others while the job would run.

    `keep`: nodes of which nothing is excluded.
    """
    blocking = blocking_reservations(cluster, occupation, start)
    if not blocking:
        return request
    gpus = [gpu for each in blocking for gpu in each.gpus if gpu.partition("/")[0] not in keep]
    nodes = [node for each in blocking for node in each.nodes if node not in keep]
    if request.exclusive:
        nodes += [gpu.partition("/")[0] for gpu in gpus]
    not_nodes = tuple(dict.fromkeys((*request.not_nodes, *nodes)))
    request = replace(request, not_nodes=not_nodes) if nodes else request
    if request.gpus is None or not gpus:
        return request
    return replace(request, gpus=replace(request.gpus, reserved=tuple(dict.fromkeys(gpus))))


def own_reservations(cluster: Cluster, keys: Container[str], at: float) -> list[AdvanceReservation]:
    """Return the reservations that have begun and that a job may use."""
    return [
        each
        for each in cluster.base.advance_reservations
        if each.begin <= at < each.end and each.admits(keys)
    ]


def within_own(
    cluster: Cluster, request: ResourceRequest, keys: Container[str], at: float
) -> ResourceRequest | None:
    """Return a request for what is reserved for a job now; None: nothing, or not for such a job."""
    own, gpus = own_reservations(cluster, keys, at), request.gpus
    if not own or request.exclusive or request.nodes or request.queue_devices:
        return None
    if gpus is not None and (gpus.required or gpus.prefer or gpus.avoid or gpus.allowed):
        return None
    nodes = tuple(node for each in own for node in each.nodes)
    if gpus is None:
        return replace(request, nodes=nodes) if nodes else None
    names = (
        *(gpu for each in own for gpu in each.gpus),
        *(f"{node}/{ALL_DEVICES}" for node in nodes),
    )
    return replace(request, gpus=replace(gpus, allowed=names))


def reservation_ends(cluster: Cluster, after: float) -> Iterator[tuple[float, Placement]]:
    """Yield the ends of reservations, with an empty placement on each of their nodes, in order."""
    for each in sorted(cluster.base.advance_reservations, key=lambda each: each.end):
        if each.end > after:
            names = dict.fromkeys((*each.nodes, *(gpu.partition("/")[0] for gpu in each.gpus)))
            for name in names:
                if name in cluster.base.nodes:
                    yield each.end, Placement(name, ())
