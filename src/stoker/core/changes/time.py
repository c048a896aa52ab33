"""What the clock brings."""

from __future__ import annotations

from stoker.core import events as e
from stoker.core.admission import admit, step_out
from stoker.core.changes.attempts import current, finish
from stoker.core.changes.step import move
from stoker.core.instructions import EndAttempt, Instruction, SignalAttempt
from stoker.core.lifecycle import JobState
from stoker.core.state import State

Wishes = list[Instruction]


def on_time_limit_reached(state: State, event: e.TimeLimitReached) -> Wishes:
    """Its time is up."""
    job = current(state, event.job, event.attempt)
    if job is None or job.state is JobState.COMPLETING:
        return []
    job.ending = "time"
    move(state, job, JobState.COMPLETING)
    return [EndAttempt(job.id, job.attempt)]


def on_time_limit_near(state: State, event: e.TimeLimitNear) -> Wishes:
    """It asked to be told before its time is up."""
    job = current(state, event.job, event.attempt)
    warning = state.spec(job).warning if job else None
    if job is None or warning is None or job.warned:
        return []
    job.warned = True
    state.touched.add(job.id)
    return [SignalAttempt(job.id, job.attempt, warning.signal)]


def on_wait_over(state: State, event: e.WaitOver) -> Wishes:
    """Its begin time has come."""
    job = state.jobs.get(event.job)
    if job is not None and job.state is JobState.PENDING:
        if job.begin_at is not None and job.begin_at <= event.at:
            job.begin_at = None
            if not job.attempt:
                job.ready_at = event.at
        state.touched.add(job.id)
        admit(state, job, event.at)
    return []


def on_deadline_passed(state: State, event: e.DeadlinePassed) -> Wishes:
    """Too late: a waiting job ends, a running one is ended."""
    job = state.jobs.get(event.job)
    if job is None or job.finished or job.state is JobState.COMPLETING:
        return []
    if job.state is JobState.PENDING:
        step_out(state, job)
        job.ended_at, job.cause = event.at, "deadline"
        return finish(state, job, JobState.DEADLINE, event.at)
    job.ending = "deadline"
    move(state, job, JobState.COMPLETING)
    return [EndAttempt(job.id, job.attempt)]
