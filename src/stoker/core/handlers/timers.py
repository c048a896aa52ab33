"""Handlers of timers: time limits, begin times and deadlines."""

from __future__ import annotations

from stoker.core import events as e
from stoker.core.events.instructions import Instructions, SignalAttempt
from stoker.core.handlers.attempts import finish, terminate
from stoker.core.model.job import Job
from stoker.core.model.lifecycle import JobState
from stoker.core.state.eligibility import dequeue, update_eligibility
from stoker.core.state.state import State


def on_time_limit_reached(state: State, job: Job, event: e.TimeLimitReached) -> Instructions:
    """Terminate an attempt that reached its time limit."""
    if job.state is JobState.COMPLETING:
        return []
    return terminate(state, job, "time")


def on_time_limit_near(state: State, job: Job, event: e.TimeLimitNear) -> Instructions:
    """Send the early signal before the time limit."""
    early_signal = state.spec(job).early_signal
    if early_signal is None or job.warned:
        return []
    job.warned = True
    state.changes.job(job.id)
    to_script = early_signal.to_script
    return [SignalAttempt(job.id, job.attempt, early_signal.signal, to_script=to_script)]


def on_begin_time_reached(state: State, event: e.BeginTimeReached) -> Instructions:
    """Update the eligibility of a job after its begin time or delay."""
    job = state.jobs.get(event.job)
    if job is not None and job.state is JobState.PENDING:
        if job.begin_at is not None and job.begin_at <= event.at:
            job.begin_at = None
            if not job.attempt:
                job.ready_at = event.at
        state.changes.job(job.id)
        update_eligibility(state, job, event.at)
    return []


def on_deadline_passed(state: State, event: e.DeadlinePassed) -> Instructions:
    """Finish a pending job at its deadline; terminate a running one."""
    job = state.jobs.get(event.job)
    if job is None or job.finished or job.state is JobState.COMPLETING:
        return []
    if job.state is JobState.PENDING:
        dequeue(state, job)
        job.ended_at, job.cause = event.at, "deadline"
        return finish(state, job, JobState.DEADLINE, event.at)
    return terminate(state, job, "deadline")
