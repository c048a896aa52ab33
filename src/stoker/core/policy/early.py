"""Which trials of a sweep are not worth going on with.

Successive halving without rounds (ASHA, Li et al. 2020, in the form that stops instead of
pausing): whoever comes to a rung goes on if it is among the best 1/eta of all that came there so
far, itself included. Nobody waits for anybody, so no device ever waits for a slow trial; some go
on that a later look would have stopped, at most to the next rung.

The median rule (Golovin et al. 2017): whoever never did as well as the middle one of the others
does here is stopped.

A trial is judged once at each rung, when it gets there. Where several are equally good all of
them go on, whoever came first. The best at a rung always goes on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from math import ceil

from stoker.core.events import Event, JobCancelled, SweepChanged, TrialStopped
from stoker.core.job import Job, Score
from stoker.core.lifecycle import HOLDING, JobState
from stoker.core.state import State
from stoker.core.sweep import Board, Rule, Sweep, signed, worst
from stoker.core.trials import sweep_of

GOLDEN = 0.6180339887498949
"""Multiples of it, without their whole parts, are as evenly spread as numbers can be."""


def judged(state: State, at: float) -> Iterator[Event]:
    """What follows from the figures that have just come in."""
    judging, state.judging = state.judging, {}
    for id, rung in judging.items():
        job = state.jobs.get(id)
        sweep = sweep_of(state, job) if job is not None else None
        if job is None or sweep is None or not _goes_on(job):
            continue
        board = state.boards.get(sweep.id)
        if board is not None and hopeless(sweep, board, job, rung):
            yield TrialStopped(at=at, job=id, attempt=job.attempt)
    for sweep in [state.sweeps[id] for id in state.touched_sweeps]:
        if sweep.id in state.boards and sweep.reached and not sweep.ended:
            yield from enough(state, sweep, at)


def _goes_on(job: Job) -> bool:
    """Whether there is something to stop; a figure may be heard of before the start."""
    return job.state in HOLDING and job.state is not JobState.COMPLETING


def hopeless(sweep: Sweep, board: Board, job: Job, rung: int) -> bool:
    """Whether a trial that came to this rung is to be stopped there."""
    rule, score = sweep.rule, job.score
    if rule is None or score is None or rung < first_rung(rule, job.index or 0):
        return False
    here = board.rungs[rung]
    if len(here) < rule.trials:
        return False
    if score.rungs[rung] == worst(sweep):
        return True  # it has gone astray, and so may all others have
    if rule.kind == "median":
        return below_median(sweep, here, score, rung)
    return below_best(rule, here, signed(sweep, score.rungs[rung]))


def below_best(rule: Rule, here: list[float], value: float) -> bool:
    """Whether it is not among the best 1/eta; of fewer than eta, only the best goes on."""
    go_on = max(int(len(here) / rule.eta), 1)
    return bisect_left(here, value) >= go_on


def below_median(sweep: Sweep, here: list[float], score: Score, rung: int) -> bool:
    """Whether the best it ever had is worse than what half of the others have here."""
    others = here.copy()
    others.remove(signed(sweep, score.rungs[rung]))
    if not others:
        return False
    low, high = others[(len(others) - 1) // 2], others[len(others) // 2]
    best = min(signed(sweep, value) for value in score.rungs[: rung + 1])
    return best > low + (high - low) / 2


def first_rung(rule: Rule, number: int) -> int:
    """The rung at which a trial is first compared: that of its bracket."""
    brackets = max(min(rule.brackets, len(rule.rungs)), 1)
    if brackets == 1:
        return 0
    bounds = list(accumulate(shares(rule.eta, brackets)))
    return bisect_right(bounds, number * GOLDEN % 1.0 * bounds[-1], hi=brackets - 1)


def shares(eta: float, brackets: int) -> list[int]:
    """How many trials of each bracket there are, as in Hyperband (Li et al. 2018).

    One that is first compared later goes on for longer: about as much time goes to each bracket.
    """
    return [ceil(brackets * eta**later / (later + 1)) for later in reversed(range(brackets))]


def enough(state: State, sweep: Sweep, at: float) -> Iterator[Event]:
    """No more trials begin; those that run come to their end."""
    yield SweepChanged(at=at, sweep=sweep.id, ended=True)
    for id in list(state.boards[sweep.id].trials):
        job = state.jobs.get(id)
        if job is not None and job.state is JobState.PENDING:
            yield JobCancelled(at=at, job=id, needless=True)
