"""Handlers of sweeps: defined, changed, measured, stopped early, unloaded and loaded."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.events import instructions as do
from stoker.core.handlers.attempts import terminate
from stoker.core.model.job import Job, JobState, Score
from stoker.core.model.sweep import FAILED, Sweep, TrialBoard, trial_of
from stoker.core.state import sweep_boards as boards
from stoker.core.state.state import State


def on_sweep_defined(state: State, event: e.SweepDefined) -> None:
    """Add a sweep with the next id, or extend an existing one."""
    previous = state.sweeps.get(event.sweep.id)
    sweep = replace(event.sweep) if previous is None else previous.redefined(event.sweep)
    state.sweeps[sweep.id] = sweep
    if previous is None:
        state.boards[sweep.id] = TrialBoard()
    record = state.record
    record.next_id = max(record.next_id, sweep.id + 1)
    record.note_last(sweep.uid, sweep.id, 1)
    _plan_trials(state, sweep, event.at)


def _plan_trials(state: State, sweep: Sweep, at: float) -> None:
    """Plan after a change of a sweep, which may run more trials at a time than before."""
    state.changes.sweep(sweep.id)
    state.pending.request_planning()
    boards.update_sweep_finished(state, sweep, at)


def on_sweep_changed(state: State, event: e.SweepChanged) -> None:
    """Change the settings of a sweep."""
    sweep = state.sweeps[event.sweep]
    for name in ("held", "ended", "priority"):
        if (value := getattr(event, name)) is not None:
            setattr(sweep, name, value)
    if event.max_running is not None:
        sweep.max_running = event.max_running or None
    if event.note is not None:
        sweep.note = event.note or None
        if sweep.note is None:
            sweep.failures_accepted = sweep.counts.get(FAILED, 0)
    _plan_trials(state, sweep, event.at)


def on_trial_measured(state: State, job: Job, event: e.TrialMeasured) -> None:
    """Record an objective value of a trial, which may arrive after its end."""
    sweep = boards.sweep_of(state, job)
    if sweep is None or job.attempt != event.attempt:
        return
    score = job.score or Score()
    value = sweep.worst_value if event.value is None else event.value
    if event.final:
        score = replace(score, value=event.value, step=event.step, final=True)
    elif event.rung == len(score.rungs):
        score = replace(score, value=event.value, step=event.step, rungs=(*score.rungs, value))
        state.memory.trials_at_rung[job.id] = event.rung
    job.score = score
    boards.update_trial(state, job)  # the value may arrive after its end


def on_trial_stopped(state: State, job: Job, event: e.TrialStopped) -> do.Instructions:
    """Terminate a trial that early stopping ended; its checkpoints stay."""
    if job.state is JobState.COMPLETING:
        return []
    job.score = replace(job.score or Score(), stopped=True)
    return terminate(state, job, "early")


def on_trials_unloaded(state: State, event: e.TrialsUnloaded) -> None:
    """Unload the trials of an ended sweep from memory."""
    state.boards.pop(event.sweep, None)
    sweep = state.sweeps[event.sweep]
    sweep.resident = False
    state.changes.sweep(sweep.id)


def on_trials_loaded(state: State, event: e.TrialsLoaded) -> None:
    """Load the trials of a sweep that are needed again."""
    sweep = state.sweeps[event.sweep]
    if sweep.id not in state.boards:
        board = state.boards[sweep.id] = TrialBoard()
        for trial in event.trials:
            job = state.jobs.get(trial.job)  # the job in memory is newer than the stored trial
            board.update(trial_of(job) if job is not None else trial)
        sweep.resident = True
        state.changes.sweep(sweep.id)
