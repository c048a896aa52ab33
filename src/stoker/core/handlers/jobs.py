"""Handlers of jobs as a whole: submitted, dismissed, unloaded and loaded."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.events.instructions import Instructions
from stoker.core.handlers.attempts import MISSING_DEVICE_RETRY_SECONDS
from stoker.core.model.job import Job
from stoker.core.model.lifecycle import FAILED_STATES
from stoker.core.model.spec import Spec, default_name
from stoker.core.model.sweep import WAITING
from stoker.core.state.eligibility import update_eligibility
from stoker.core.state.reranking import requeue_all
from stoker.core.state.state import State
from stoker.core.state.sweep_boards import record_trial, update_sweep_finished
from stoker.core.state.timers import set_deadline


def on_spec_recorded(state: State, event: e.SpecRecorded) -> Instructions:
    """Store the spec that the jobs of a submission share."""
    state.specs.setdefault(event.hash, event.spec)
    state.spec_users.setdefault(event.hash, 0)
    return []


def on_ids_reserved(state: State, event: e.IdsReserved) -> Instructions:
    """Raise the next id, so that ids given out before are not used again."""
    state.record.next_id = max(state.record.next_id, event.next_id)
    state.changes.record()
    return []


def _recheck_missing(state: State, spec: Spec, at: float) -> None:
    """Forget that nodes could not run an image, if that is long ago, and try them again."""
    missing = (
        state.record.missing_devices.get(spec.container.image)
        if spec.container is not None
        else None
    )
    if (
        missing
        and spec.container is not None
        and min(missing.values()) < at - MISSING_DEVICE_RETRY_SECONDS
    ):
        del state.record.missing_devices[spec.container.image]
        state.changes.record()
        requeue_all(state, None, at)


def on_jobs_submitted(state: State, event: e.JobsSubmitted) -> Instructions:
    """Add new jobs with the next ids."""
    spec = state.specs[event.spec]
    _recheck_missing(state, spec, event.at)
    lines, indexes = event.lines, event.indexes
    array = event.first if indexes is not None else None
    if event.sweep is not None:
        return _on_trials(state, event)
    for offset in range(event.count):
        command = lines[offset] if lines is not None else event.argv
        job = Job(
            id=event.first + offset,
            spec=event.spec,
            name=spec.name or default_name(command),
            user=spec.user,
            submitted_at=event.at,
            command=command,
            array=array,
            index=indexes[offset] if indexes is not None else None,
            priority=event.priority,
            held=event.held,
            begin_at=event.begin_at,
        )
        state.load(job)
        set_deadline(state, job)
        update_eligibility(state, job, event.at)
    record = state.record
    if event.first + event.count > record.next_id:  # else it was recovered with its old id
        record.next_id = event.first + event.count
        record.last_first, record.last_count = event.first, event.count
    state.changes.record()
    return []


def _on_trials(state: State, event: e.JobsSubmitted) -> Instructions:
    """Add trials of a sweep with its next indexes."""
    assert event.sweep is not None
    sweep, spec = state.sweeps[event.sweep], state.specs[event.spec]
    for offset, (params, command) in enumerate(event.trials):
        job = Job(
            id=event.first + offset,
            spec=event.spec,
            name=spec.name or sweep.name,
            user=spec.user,
            submitted_at=event.at,
            command=command,
            array=sweep.id,
            index=sweep.issued,
            priority=event.priority,
            held=event.held,
            begin_at=event.begin_at,
            params=params,
        )
        sweep.issued += 1
        sweep.count(WAITING, +1)
        state.load(job)
        record_trial(state, job)
        set_deadline(state, job)
        update_eligibility(state, job, event.at)
    update_sweep_finished(state, sweep, event.at)
    state.changes.sweep(sweep.id)
    state.record.next_id = event.first + event.count
    state.changes.record()
    return []


def on_failures_dismissed(state: State, event: e.FailuresDismissed) -> Instructions:
    """Mark failed jobs as dismissed by the user."""
    for id in event.jobs:
        job = state.jobs.get(id)
        if job is not None:
            job.seen = True
            state.unacknowledged.pop(id, None)
            state.changes.job(id)
    return []


def on_history_cleared(state: State, event: e.HistoryCleared) -> Instructions:
    """Hide jobs that ended before this from a compat command."""
    state.record.history_cleared[event.client] = event.at
    state.changes.record()
    return []


def on_jobs_unloaded(state: State, event: e.JobsUnloaded) -> Instructions:
    """Unload finished jobs from memory."""
    for id in event.jobs:
        job = state.jobs.get(id)
        if job is not None:
            state.unload(job)
    return []


def on_job_loaded(state: State, event: e.JobLoaded) -> Instructions:
    """Load a finished job that is needed again."""
    if event.job.id not in state.jobs:
        job = replace(event.job)  # a copy: events do not change, jobs do
        state.specs.setdefault(job.spec, event.spec)
        state.spec_users.setdefault(job.spec, 0)
        state.load(job)
        state.finished[job.id] = None
        if job.state in FAILED_STATES and not job.seen:
            state.unacknowledged[job.id] = None
    return []
