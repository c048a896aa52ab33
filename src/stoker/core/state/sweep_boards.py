"""Trial boards: counts, trials and the best trial of each sweep."""

from __future__ import annotations

from stoker.core.model.job import Job
from stoker.core.model.sweep import Sweep, trial_of, trial_status
from stoker.core.state.eligibility import update_dependents
from stoker.core.state.state import State

KEEP_BOARDS = 8
"""Boards of ended sweeps kept in memory; others are read from the store on demand."""


def sweep_of(state: State, job: Job) -> Sweep | None:
    """Return the sweep of a trial, or None."""
    return state.sweeps.get(job.array or 0) if job.params is not None else None


def record_trial(state: State, job: Job) -> None:
    """Enter a trial in the board of its sweep."""
    sweep = sweep_of(state, job)
    if sweep is not None and sweep.id in state.boards:
        state.boards[sweep.id].update(trial_of(job))


def update_trial(state: State, job: Job, before: str | None = None) -> None:
    """Update the sweep of a trial that changed. `before`: the status that it had."""
    sweep = sweep_of(state, job)
    if sweep is None:
        return
    state.changes.sweep(sweep.id)
    if before is not None:
        sweep.count(before, -1)
        sweep.count(trial_status(job.state, job.score), +1)
    record_trial(state, job)
    if sweep.best_job != job.id:
        sweep.update_best(trial_of(job))
        return
    sweep.best = sweep.best_job = None
    board = state.boards.get(sweep.id)
    for trial in board.trials.values() if board is not None else [trial_of(job)]:
        sweep.update_best(trial)


def update_sweep_finished(state: State, sweep: Sweep, at: float) -> None:
    """Update whether a sweep has ended, and the jobs that depend on it."""
    was_open = sweep.ended_at is None
    sweep.update_finished(at)
    if was_open != (sweep.ended_at is None):
        update_dependents(state, sweep.id, at)


def unloadable_boards(state: State) -> list[int]:
    """Return the ended sweeps to unload from memory, the oldest first."""
    ended = [id for id in state.boards if not state.sweeps[id].is_open]
    return sorted(ended, key=lambda sweep: state.sweeps[sweep].ended_at or 0.0)[:-KEEP_BOARDS]
