"""Who may slip into the gaps without delaying the one at the head of the line."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from stoker.core.cluster import Cluster, Placement
from stoker.core.policy.place import place
from stoker.core.request import Request

GRACE = 10.0
"""Seconds a job may take to end after its time limit, before it is killed."""


class Reservation:
    """The head's place: when it can start at the latest, and on what."""

    def __init__(self, start: float, shadow: Cluster) -> None:
        self.start = start
        self.shadow = shadow
        """The ledger as it will be when the head has started."""

    def over_in_time(self, now: float, limit: int | None) -> bool:
        """Whether a job that starts now is over, at the latest, when the head wants to start."""
        return limit is not None and now + limit + GRACE <= self.start

    def beside(self, cluster: Cluster, request: Request) -> Placement | None:
        """Devices that are free now and stay free when the head has started, taken if so."""
        gap = cluster.copy()
        for name, node in gap.nodes.items():
            later = self.shadow.nodes[name].by_name
            for device in node.devices():
                kept = later.get((device.type, device.name))
                if kept is not None:
                    device.free = min(device.free, kept.free)
                    device.memory_free = min(device.memory_free, kept.memory_free)
        placement = place(gap, request)
        if placement is not None:
            self.shadow.take(placement)
        return placement


class Gate:
    """One pass over the line: finds room, and lets nobody delay the first that has none."""

    def __init__(self, cluster: Cluster, ends: Callable[[], list[tuple[float, Placement]]]) -> None:
        self.cluster = cluster
        self.ends = ends
        """When each running attempt is over at the latest; asked only if it matters."""
        self.blocked: list[Request] = []
        self.reservation: Reservation | None = None

    def find(self, request: Request, limit: int | None, now: float) -> Placement | None:
        """Devices on which this request may start now, or None."""
        placement = place(self.cluster, request)
        if placement is None:
            if self.reservation is None:
                self.blocked.append(request)
            return None
        while self.reservation is None and self.blocked:
            # None: not even the end of all running jobs would help it (strangers, drained
            # devices), so it must not block the others, and the next one is the head.
            self.reservation = reserve(self.cluster, self.ends(), self.blocked.pop(0))
        if self.reservation is None or self.reservation.over_in_time(now, limit):
            return placement
        return self.reservation.beside(self.cluster, request)


def reserve(
    cluster: Cluster, running: list[tuple[float, Placement]], request: Request
) -> Reservation | None:
    """When the running jobs let this request start; None when even their end would not.

    `running` holds each attempt's latest end (infinite without a time limit). With an
    unlimited job in the way, the start is unknown, but the devices are still kept: only
    jobs with a limit, or jobs that fit beside the head, may start before it.
    """
    shadow = cluster.copy()
    for end, placement in sorted(running, key=lambda pair: pair[0]):
        shadow.release(placement)
        found = place(shadow, request)
        if found is not None:
            shadow.take(found)
            return Reservation(end, shadow)
    return None


def latest_end(started: float | None, limit: int | None, slack: float) -> float:
    """The boot-clock time by which an attempt is over for sure."""
    if started is None or limit is None:
        return inf
    return started + limit + slack + GRACE
