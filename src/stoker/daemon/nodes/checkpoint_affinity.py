"""Pins a job to the node that still has its checkpoints."""

from __future__ import annotations

from _blake2 import blake2b

from msgspec.json import encode
from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.job import Job
from stoker.core.state import State


def pin_to_node(state: State, job: Job, node: str, at: float) -> list[e.Event]:
    """Return the events that restrict a job to one node, as an edit by its owner would."""
    spec = state.spec(job)
    pinned = replace(spec, request=replace(spec.request, nodes=(node,)))
    hash = blake2b(encode(pinned), digest_size=16).hexdigest()
    events: list[e.Event] = []
    if hash not in state.specs:
        events.append(e.SpecRecorded(at=at, hash=hash, spec=pinned))
    events.append(
        e.JobEdited(
            at=at, job=job.id, spec=hash, name=job.name, priority=job.priority,
            begin_at=job.begin_at,
        )
    )  # fmt: skip
    return events
