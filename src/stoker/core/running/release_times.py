"""Release times: when running jobs free their devices, at the latest or as estimated, in order."""

from __future__ import annotations

from math import inf

from stoker.core.model.resources import Placement

Release = tuple[float, Placement]
"""Latest end of a running job, and the placement it frees then."""
KILL_GRACE_SECONDS = 10.0
"""Seconds a job may take to end after its time limit, before it is killed."""


def latest_end(started: float | None, limit: int | None, slack: float) -> float:
    """Return the boot-clock time by which an attempt has ended for certain."""
    if started is None or limit is None:
        return inf
    return started + limit + slack + KILL_GRACE_SECONDS
