"""Pins a job to the node that still has its checkpoints."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.model.job import Job
from stoker.core.state.state import State
from stoker.daemon.context import record_spec


def pin_to_node(state: State, job: Job, node: str, at: float) -> list[e.Event]:
    """Return the events that restrict a job to one node, as an edit by its owner would."""
    spec = state.spec(job)
    pinned = replace(spec, request=replace(spec.request, nodes=(node,)))
    hash, recorded = record_spec(state, pinned, at)
    edited = e.JobEdited(
        at=at, job=job.id, spec=hash, name=job.name, priority=job.priority,
        begin_at=job.begin_at,
    )  # fmt: skip
    return [*recorded, edited]
