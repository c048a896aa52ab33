"""How a job may be started now: what to ask the ledger for, the best first."""

from __future__ import annotations

from stoker.core.job import Job
from stoker.core.policy import elastic
from stoker.core.request import Request
from stoker.core.state import State


def ways(state: State, job: Job, request: Request) -> list[Request]:
    """What would do for a job, the best first; for most jobs, just what they ask for."""
    return elastic.sizes(state, job, request)
