"""How sweeps keep count of their trials, and remember them."""

from __future__ import annotations

from stoker.core.job import Job
from stoker.core.state import State
from stoker.core.sweep import Sweep, trial_of, word_of

KEEP_BOARDS = 8
"""Boards of sweeps that are over; the others are read from the store when more is wanted."""


def sweep_of(state: State, job: Job) -> Sweep | None:
    """The sweep that a job is a trial of."""
    return state.sweeps.get(job.array or 0) if job.params is not None else None


def recount(state: State, job: Job, before: str) -> None:
    """A trial stands somewhere else now."""
    sweep = sweep_of(state, job)
    if sweep is None:
        return
    now = word_of(job.state, job.score)
    if now != before:
        sweep.count(before, -1)
        sweep.count(now, +1)
        state.touched_sweeps.add(sweep.id)
    note_trial(state, job)


def note_trial(state: State, job: Job) -> None:
    """Keep a sweep's board up to date."""
    sweep = sweep_of(state, job)
    if sweep is not None and sweep.id in state.boards:
        state.boards[sweep.id].enter(trial_of(job), sweep)
        state.touched_sweeps.add(sweep.id)


def look_whether_best(state: State, job: Job) -> None:
    """A trial stands otherwise than before: it may be the best of its sweep, or no longer."""
    sweep = sweep_of(state, job)
    if sweep is None:
        return
    state.touched_sweeps.add(sweep.id)
    if sweep.best_job != job.id:
        sweep.look_whether_best(trial_of(job))
        return
    sweep.best = sweep.best_job = None
    board = state.boards.get(sweep.id)
    for trial in board.trials.values() if board is not None else [trial_of(job)]:
        sweep.look_whether_best(trial)


def forgettable_boards(state: State) -> list[int]:
    """Sweeps that are over and whose trials may leave memory, the oldest first."""
    if len(state.boards) <= KEEP_BOARDS:
        return []
    over = [id for id in state.boards if not state.sweeps[id].open]
    over.sort(key=lambda sweep: state.sweeps[sweep].ended_at or 0.0)
    return over[: max(len(over) - KEEP_BOARDS, 0)]
