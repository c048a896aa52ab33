"""Early stopping: which trials of a sweep stop at a rung.

Asynchronous successive halving (ASHA, Li et al., MLSys 2020, in the form that stops instead of
pausing): a trial that reaches a rung continues if it is among the best 1/eta of all that reached
it so far, itself included. No trial waits for another; some continue, at most to the next rung,
that would have stopped had they been compared later.

The median rule (Golovin et al. 2017): a trial stops if its best value so far is worse than the
median of the others at this rung.

A trial is compared once per rung, when it reaches it. Equally good trials continue together, and
the best at a rung always continues.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from math import ceil

from stoker.core.events import Event, JobCancelled, SweepChanged, TrialStopped
from stoker.core.model.job import Job, JobState, Score
from stoker.core.model.sweep import EarlyStoppingRule, Sweep, TrialBoard
from stoker.core.state.state import State
from stoker.core.state.sweep_boards import sweep_of

GOLDEN = 0.6180339887498949
"""Golden ratio conjugate, without a unit: fractional parts of its multiples spread evenly."""


def early_stopping_events(state: State, at: float) -> Iterator[Event]:
    """Yield the stops of trials that reached a rung, and the end of sweeps at their target."""
    trials, state.memory.trials_at_rung = state.memory.trials_at_rung, {}
    for id, rung in trials.items():
        job = state.jobs.get(id)
        sweep = sweep_of(state, job) if job is not None else None
        if job is None or sweep is None or not job.holding or job.state is JobState.COMPLETING:
            continue
        board = state.boards.get(sweep.id)
        if board is not None and should_stop(sweep, board, job, rung):
            yield TrialStopped(at=at, job=id, attempt=job.attempt)
    for sweep in [state.sweeps[id] for id in sorted(state.changes.sweeps)]:
        if sweep.id in state.boards and sweep.target_reached and not sweep.ended:
            yield from finish_sweep(state, sweep, at)


def should_stop(sweep: Sweep, board: TrialBoard, job: Job, rung: int) -> bool:
    """Whether a trial that reached a rung is stopped there."""
    rule, score = sweep.rule, job.score
    if rule is None or score is None or rung < first_rung(rule, job.index or 0):
        return False
    values = board.values_at(sweep, rung)
    if len(values) < rule.trials:
        return False
    if score.rungs[rung] == sweep.worst_value:
        return True  # it diverged, even if all others did too
    if rule.kind == "median":
        return below_median(sweep, values, score, rung)
    return below_halving_cut(rule, values, sweep.ascending(score.rungs[rung]))


def below_halving_cut(rule: EarlyStoppingRule, values: list[float], value: float) -> bool:
    """Whether a value is not among the best 1/eta; of fewer than eta, not the best."""
    continuing = max(int(len(values) / rule.eta), 1)
    return bisect_left(values, value) >= continuing


def below_median(sweep: Sweep, values: list[float], score: Score, rung: int) -> bool:
    """Whether the best value of a trial is worse than the median of the others at a rung."""
    others = values.copy()
    others.remove(sweep.ascending(score.rungs[rung]))
    if not others:
        return False
    low, high = others[(len(others) - 1) // 2], others[len(others) // 2]
    best = min(sweep.ascending(value) for value in score.rungs[: rung + 1])
    return best > low + (high - low) / 2


def first_rung(rule: EarlyStoppingRule, number: int) -> int:
    """Return the rung at which a trial is first compared: that of its bracket."""
    brackets = max(min(rule.brackets, len(rule.rungs)), 1)
    if brackets == 1:
        return 0
    bounds = list(accumulate(bracket_shares(rule.eta, brackets)))
    return bisect_right(bounds, number * GOLDEN % 1.0 * bounds[-1], hi=brackets - 1)


def bracket_shares(eta: float, brackets: int) -> list[int]:
    """Return the number of trials per bracket, as in Hyperband (Li et al. 2018).

    A trial that is first compared later runs longer: each bracket gets about the same time.
    """
    return [ceil(brackets * eta**later / (later + 1)) for later in reversed(range(brackets))]


def finish_sweep(state: State, sweep: Sweep, at: float) -> Iterator[Event]:
    """Yield the end of a sweep: pending trials are cancelled, running ones finish."""
    yield SweepChanged(at=at, sweep=sweep.id, ended=True)
    for id in list(state.boards[sweep.id].trials):
        job = state.jobs.get(id)
        if job is not None and job.state is JobState.PENDING:
            yield JobCancelled(at=at, job=id, needless=True)
