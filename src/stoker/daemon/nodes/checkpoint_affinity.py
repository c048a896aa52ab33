"""A job whose checkpoints could not be carried away goes on where they are."""

from __future__ import annotations

from _blake2 import blake2b

from msgspec.json import encode
from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.job import Job
from stoker.core.state import State


def tie(state: State, job: Job, machine: str, at: float) -> list[e.Event]:
    """Have it ask for that machine alone, as if its owner had said so."""
    spec = state.spec(job)
    tied = replace(spec, request=replace(spec.request, nodes=(machine,)))
    hash = blake2b(encode(tied), digest_size=16).hexdigest()
    told: list[e.Event] = []
    if hash not in state.specs:
        told.append(e.SpecRecorded(at=at, hash=hash, spec=tied))
    told.append(
        e.JobEdited(
            at=at, job=job.id, spec=hash, name=job.name, priority=job.priority,
            begin_at=job.begin_at,
        )
    )  # fmt: skip
    return told
