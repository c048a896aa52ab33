"""Handlers of jobs as a whole: submitted, dismissed, unloaded and loaded."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.handlers.outcome import MAX_BACKOFF_SECONDS
from stoker.core.model.job import Job
from stoker.core.model.spec import JobCommand, Spec, default_name
from stoker.core.model.sweep import WAITING
from stoker.core.state.eligibility import requeue_all, update_eligibility
from stoker.core.state.record import history_key
from stoker.core.state.state import State
from stoker.core.state.sweep_boards import record_trial, update_sweep_finished


def on_spec_recorded(state: State, event: e.SpecRecorded) -> None:
    """Store the spec that the jobs of a submission share."""
    state.specs.setdefault(event.hash, event.spec)


def on_ids_reserved(state: State, event: e.IdsReserved) -> None:
    """Raise the next id, so that ids given out before are not used again."""
    state.record.next_id = max(state.record.next_id, event.next_id)


def _recheck_missing(state: State, spec: Spec, at: float) -> None:
    """Forget that nodes could not run an image, if that is long ago, and try them again."""
    image = spec.container.image if spec.container is not None else ""
    missing = state.record.missing_devices.get(image)
    if missing and min(missing.values()) < at - MAX_BACKOFF_SECONDS:
        del state.record.missing_devices[image]
        requeue_all(state, None, at)


def on_jobs_submitted(state: State, event: e.JobsSubmitted) -> None:
    """Add new jobs with the next ids, or trials of a sweep with its next indexes."""
    record, sweep = state.record, state.sweeps[event.sweep] if event.sweep is not None else None
    _recheck_missing(state, state.specs[event.spec], event.at)
    for offset in range(event.count):
        job = _new_job(state, event, offset)
        if sweep is not None:
            job.name = state.specs[event.spec].name or sweep.name
            job.array, job.index, job.params = sweep.id, sweep.issued, event.trials[offset][0]
            sweep.issued += 1
            sweep.count(WAITING, +1)
            record_trial(state, job)
        elif event.indexes is not None:
            job.array, job.index = event.first, event.indexes[offset]
        state.load(job)
        update_eligibility(state, job, event.at)
    if sweep is not None:
        update_sweep_finished(state, sweep, event.at)
        state.changes.sweep(sweep.id)
    elif event.first + event.count > record.next_id:  # else it was recovered with its old id
        record.note_last(state.specs[event.spec].uid, event.first, event.count)
    record.next_id = max(record.next_id, event.first + event.count)


def _new_job(state: State, event: e.JobsSubmitted, offset: int) -> Job:
    spec = state.specs[event.spec]
    command: JobCommand = event.argv
    if event.trials:
        command = event.trials[offset][1]
    elif event.lines is not None:
        command = event.lines[offset]
    return Job(
        id=event.first + offset, spec=event.spec, name=spec.name or default_name(command),
        user=spec.user, submitted_at=event.at, command=command, priority=event.priority,
        held=event.held, begin_at=event.begin_at,
    )  # fmt: skip


def on_failures_dismissed(state: State, event: e.FailuresDismissed) -> None:
    """Mark failed jobs as dismissed by the user."""
    for job in [state.jobs[id] for id in event.jobs if id in state.jobs]:
        job.seen = True
        state.unacknowledged.pop(job.id, None)
        state.changes.job(job.id)


def on_history_cleared(state: State, event: e.HistoryCleared) -> None:
    """Hide jobs that ended before this from a compat command."""
    state.record.history_cleared[history_key(event.client, event.uid)] = event.at


def on_jobs_unloaded(state: State, event: e.JobsUnloaded) -> None:
    """Unload finished jobs from memory."""
    for job in [state.jobs[id] for id in event.jobs if id in state.jobs]:
        state.unload(job)
    state.drop_unused_specs()


def on_job_loaded(state: State, event: e.JobLoaded) -> None:
    """Load a finished job that is needed again."""
    if event.job.id not in state.jobs:
        job = replace(event.job)  # a copy: events do not change, jobs do
        state.specs.setdefault(job.spec, event.spec)
        state.load(job)
        state.index_finished(job)
