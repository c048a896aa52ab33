"""Sweeps: asked for, measured, stopped early, ended, forgotten and recalled."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.changes.attempts import current, look_whether_over
from stoker.core.changes.step import move
from stoker.core.instructions import EndAttempt, Instruction
from stoker.core.job import Score
from stoker.core.lifecycle import JobState
from stoker.core.state import State
from stoker.core.sweep import FAILED, Board, definition_of, trial_of, worst
from stoker.core.trials import look_whether_best, note_trial, sweep_of

Wishes = list[Instruction]


def on_sweep_defined(state: State, event: e.SweepDefined) -> Wishes:
    """A new sweep takes the next number; one that is known wants something more."""
    known = state.sweeps.get(event.sweep.id)
    sweep = replace(event.sweep) if known is None else definition_of(known, event.sweep)
    state.sweeps[sweep.id] = sweep
    state.touched_sweeps.add(sweep.id)
    if known is None:
        state.boards[sweep.id] = Board()
    rest = state.rest
    rest.next_id = max(rest.next_id, sweep.id + 1)
    rest.last_first, rest.last_count = sweep.id, 1
    state.rest_changed = True
    state.line.stirred = True  # it may run more at a time than before
    state.line.renew_all()
    look_whether_over(state, sweep, event.at)
    return []


def on_sweep_changed(state: State, event: e.SweepChanged) -> Wishes:
    """It goes on otherwise than before."""
    sweep = state.sweeps[event.sweep]
    if event.held is not None:
        sweep.held = event.held
    if event.ended is not None:
        sweep.ended = event.ended
    if event.max_running is not None:
        sweep.max_running = event.max_running or None
    if event.priority is not None:
        sweep.priority = event.priority
    if event.note is not None:
        sweep.note = event.note or None
        if sweep.note is None:
            sweep.forgiven = sweep.counts.get(FAILED, 0)
    state.touched_sweeps.add(sweep.id)
    state.line.stirred = True
    state.line.renew_all()
    look_whether_over(state, sweep, event.at)
    return []


def on_trial_measured(state: State, event: e.TrialMeasured) -> Wishes:
    """A figure by which a trial is judged, perhaps only after its end."""
    job = state.jobs.get(event.job)
    sweep = sweep_of(state, job) if job is not None else None
    if job is None or sweep is None or job.attempt != event.attempt:
        return []
    score = job.score or Score()
    value = worst(sweep) if event.value is None else event.value
    if event.final:
        score = replace(score, value=event.value, step=event.step, final=True)
    elif event.rung == len(score.rungs):
        score = replace(score, value=event.value, step=event.step, rungs=(*score.rungs, value))
        state.judging[job.id] = event.rung
    job.score = score
    state.touched.add(job.id)
    note_trial(state, job)
    look_whether_best(state, job)  # its figure may come after its end
    return []


def on_trial_stopped(state: State, event: e.TrialStopped) -> Wishes:
    """Others do better: it gives its devices back at once, and keeps what it has saved."""
    job = current(state, event.job, event.attempt)
    if job is None or job.state is JobState.COMPLETING:
        return []
    job.score = replace(job.score or Score(), stopped=True)
    job.ending = "early"
    move(state, job, JobState.COMPLETING)
    return [EndAttempt(job.id, job.attempt)]


def on_trials_forgotten(state: State, event: e.TrialsForgotten) -> Wishes:
    """Its board makes room."""
    state.boards.pop(event.sweep, None)
    sweep = state.sweeps[event.sweep]
    sweep.resident = False
    state.touched_sweeps.add(sweep.id)
    return []


def on_trials_recalled(state: State, event: e.TrialsRecalled) -> Wishes:
    """Its board is needed again."""
    sweep = state.sweeps[event.sweep]
    if sweep.id not in state.boards:
        board = state.boards[sweep.id] = Board()
        for trial in event.trials:
            job = state.jobs.get(trial.job)  # what is in memory is newer than what was read
            board.enter(trial_of(job) if job is not None else trial, sweep)
        sweep.resident = True
        state.touched_sweeps.add(sweep.id)
    return []
