"""The values that the stages of the planner pass to each other."""

from __future__ import annotations

from typing import NamedTuple

from stoker.core.events import AttemptPlanned, PreemptionCancelled, PreemptionRequested
from stoker.core.model.job import Job
from stoker.core.model.resources import ResourceRequest
from stoker.core.structures import SortKey

Decision = AttemptPlanned | PreemptionRequested | PreemptionCancelled
"""A decision is the event that carries it out."""


class Candidate(NamedTuple):
    """A pending job that may fit, when the scan has come to its position."""

    key: SortKey
    job: Job
    request: ResourceRequest
