"""New jobs."""

from __future__ import annotations

from stoker.core import events as e
from stoker.core.admission import admit
from stoker.core.changes.attempts import LACKING_SECONDS, look_whether_over, set_deadline
from stoker.core.instructions import Instruction
from stoker.core.job import Job, Spec
from stoker.core.naming import name_of
from stoker.core.standings import readmit
from stoker.core.state import State
from stoker.core.sweep import WAITING
from stoker.core.trials import note_trial

Wishes = list[Instruction]


def on_spec_recorded(state: State, event: e.SpecRecorded) -> Wishes:
    """The common part of a submission, kept once."""
    state.specs.setdefault(event.hash, event.spec)
    state.spec_users.setdefault(event.hash, 0)
    return []


def on_ids_reserved(state: State, event: e.IdsReserved) -> Wishes:
    """Numbers that somebody may remember are not given out again."""
    state.rest.next_id = max(state.rest.next_id, event.next_id)
    state.rest_changed = True
    return []


def _look_again(state: State, spec: Spec, at: float) -> None:
    """Forget after a while that nodes could not run an image: a new job is tried there again."""
    known = state.rest.lacking.get(spec.container.image) if spec.container is not None else None
    if known and spec.container is not None and min(known.values()) < at - LACKING_SECONDS:
        del state.rest.lacking[spec.container.image]
        state.rest_changed = True
        readmit(state, None, at)


def on_jobs_submitted(state: State, event: e.JobsSubmitted) -> Wishes:
    """New jobs, with the next ids."""
    spec = state.specs[event.spec]
    _look_again(state, spec, event.at)
    lines, indexes = event.lines, event.indexes
    array = event.first if indexes is not None else None
    if event.sweep is not None:
        return _on_trials(state, event)
    for offset in range(event.count):
        command = lines[offset] if lines is not None else event.argv
        job = Job(
            id=event.first + offset,
            spec=event.spec,
            name=spec.name or name_of(command),
            user=spec.user,
            submitted_at=event.at,
            command=command,
            array=array,
            index=indexes[offset] if indexes is not None else None,
            priority=event.priority,
            held=event.held,
            begin_at=event.begin_at,
        )
        state.enter(job)
        set_deadline(state, job)
        admit(state, job, event.at)
    rest = state.rest
    if event.first + event.count > rest.next_id:  # else it was found running: see `recovered.py`
        rest.next_id = event.first + event.count
        rest.last_first, rest.last_count = event.first, event.count
    state.rest_changed = True
    return []


def _on_trials(state: State, event: e.JobsSubmitted) -> Wishes:
    """More trials of a sweep, with its next numbers."""
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
        state.enter(job)
        note_trial(state, job)
        set_deadline(state, job)
        admit(state, job, event.at)
    look_whether_over(state, sweep, event.at)
    state.touched_sweeps.add(sweep.id)
    state.rest.next_id = event.first + event.count
    state.rest_changed = True
    return []
