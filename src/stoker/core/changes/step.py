"""One step of a job's lifecycle, with all that is counted by it."""

from __future__ import annotations

from stoker.core.admission import unlink
from stoker.core.job import Job
from stoker.core.lifecycle import UNHAPPY, JobState, check
from stoker.core.state import State
from stoker.core.sweep import word_of
from stoker.core.trials import recount


def move(state: State, job: Job, to: JobState) -> None:
    """Take one step of the lifecycle."""
    check(job.state, to)
    before = word_of(job.state, job.score) if job.params is not None else ""
    if job.state is JobState.PENDING:
        unlink(state, job)
        state.doomed.discard(job.id)
    if job.finished:
        state.finished.pop(job.id, None)
        state.unseen.pop(job.id, None)
    job.state = to
    state.victims.stir(job.id)
    if to is JobState.COMPLETING:
        state.leaving[job.id] = job
    if job.finished:
        state.finished[job.id] = None
        if to in UNHAPPY and not job.seen:
            state.unseen[job.id] = None
    state.touched.add(job.id)
    if before:
        recount(state, job, before)
