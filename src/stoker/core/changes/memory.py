"""What is looked at, forgotten and recalled."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.instructions import Instruction
from stoker.core.lifecycle import UNHAPPY
from stoker.core.state import State

Wishes = list[Instruction]


def on_jobs_seen(state: State, event: e.JobsSeen) -> Wishes:
    """Somebody looked at how these ended."""
    for id in event.jobs:
        job = state.jobs.get(id)
        if job is not None:
            job.seen = True
            state.unseen.pop(id, None)
            state.touched.add(id)
    return []


def on_records_cleared(state: State, event: e.RecordsCleared) -> Wishes:
    """A door shows nothing that ended before this."""
    state.rest.cleared[event.door] = event.at
    state.rest_changed = True
    return []


def on_jobs_forgotten(state: State, event: e.JobsForgotten) -> Wishes:
    """Finished jobs make room."""
    for id in event.jobs:
        job = state.jobs.get(id)
        if job is not None:
            state.leave(job)
    return []


def on_job_recalled(state: State, event: e.JobRecalled) -> Wishes:
    """A finished job is needed again."""
    if event.job.id not in state.jobs:
        job = replace(event.job)  # a copy: the event is a fact, and the job goes on changing
        state.specs.setdefault(job.spec, event.spec)
        state.spec_users.setdefault(job.spec, 0)
        state.enter(job)
        state.finished[job.id] = None
        if job.state in UNHAPPY and not job.seen:
            state.unseen[job.id] = None
    return []
