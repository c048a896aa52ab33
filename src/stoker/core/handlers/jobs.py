"""Handlers of jobs as a whole: submitted, dismissed, unloaded and loaded."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.events.instructions import Instructions
from stoker.core.handlers.attempts import MISSING_DEVICE_RETRY_SECONDS
from stoker.core.model.job import Job
from stoker.core.model.lifecycle import FAILED_STATES
from stoker.core.model.spec import JobCommand, Spec, default_name
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
    image = spec.container.image if spec.container is not None else ""
    missing = state.record.missing_devices.get(image)
    if missing and min(missing.values()) < at - MISSING_DEVICE_RETRY_SECONDS:
        del state.record.missing_devices[image]
        state.changes.record()
        requeue_all(state, None, at)


def on_jobs_submitted(state: State, event: e.JobsSubmitted) -> Instructions:
    """Add new jobs with the next ids."""
    _recheck_missing(state, state.specs[event.spec], event.at)
    if event.sweep is not None:
        return _on_trials(state, event)
    lines, indexes = event.lines, event.indexes
    for offset in range(event.count):
        job = _new_job(state, event, offset, lines[offset] if lines is not None else event.argv)
        if indexes is not None:
            job.array, job.index = event.first, indexes[offset]
        _add(state, job, event.at)
    record = state.record
    if event.first + event.count > record.next_id:  # else it was recovered with its old id
        record.next_id = event.first + event.count
        record.last_first, record.last_count = event.first, event.count
    state.changes.record()
    return []


def _on_trials(state: State, event: e.JobsSubmitted) -> Instructions:
    """Add trials of a sweep with its next indexes."""
    assert event.sweep is not None
    sweep = state.sweeps[event.sweep]
    for offset, (params, command) in enumerate(event.trials):
        job = _new_job(state, event, offset, command)
        job.name = state.specs[event.spec].name or sweep.name
        job.array, job.index, job.params = sweep.id, sweep.issued, params
        sweep.issued += 1
        sweep.count(WAITING, +1)
        record_trial(state, job)
        _add(state, job, event.at)
    update_sweep_finished(state, sweep, event.at)
    state.changes.sweep(sweep.id)
    state.record.next_id = event.first + event.count
    state.changes.record()
    return []


def _new_job(state: State, event: e.JobsSubmitted, offset: int, command: JobCommand) -> Job:
    spec = state.specs[event.spec]
    return Job(
        id=event.first + offset,
        spec=event.spec,
        name=spec.name or default_name(command),
        user=spec.user,
        submitted_at=event.at,
        command=command,
        priority=event.priority,
        held=event.held,
        begin_at=event.begin_at,
    )


def _add(state: State, job: Job, at: float) -> None:
    state.load(job)
    set_deadline(state, job)
    update_eligibility(state, job, at)


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
