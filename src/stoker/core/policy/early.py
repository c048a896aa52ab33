"""Which trials of a sweep are not worth going on with.

Successive halving, without rounds: whoever comes to a rung goes on if it is among the best 1/eta
of all that came there so far, itself included. Nobody waits for anybody, so no device ever waits
for a slow trial; some go on that a later look would have stopped, at most to the next rung.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from stoker.core.events import Event, JobCancelled, SweepChanged, TrialStopped
from stoker.core.job import Job, Score
from stoker.core.lifecycle import JobState
from stoker.core.state import State
from stoker.core.sweep import Board, Rule, Sweep, first_rung, signed


def judged(state: State, at: float) -> Iterator[Event]:
    """What follows from the figures that have just come in."""
    judging, state.judging = state.judging, {}
    for id, rung in judging.items():
        job = state.jobs.get(id)
        sweep = state.sweep_of(job) if job is not None else None
        if job is None or sweep is None or job.state is not JobState.RUNNING:
            continue
        if hopeless(sweep, state.boards[sweep.id], job, rung):
            yield TrialStopped(at=at, job=id, attempt=job.attempt)
    for sweep in [state.sweeps[id] for id in state.touched_sweeps]:
        if sweep.resident and reached(sweep) and not sweep.ended:
            yield from enough(state, sweep, at)


def hopeless(sweep: Sweep, board: Board, job: Job, rung: int) -> bool:
    """Whether a trial that came to this rung is to be stopped there."""
    rule, score = sweep.rule, job.score
    if rule is None or score is None or rung < first_rung(rule, job.index or 0):
        return False
    here = board.rungs[rung]
    if len(here) < rule.trials:
        return False
    if rule.kind == "median":
        return below_median(sweep, here, score, rung)
    return below_best(rule, here, signed(sweep, score.rungs[rung]))


def below_best(rule: Rule, here: list[float], value: float) -> bool:
    """Whether it is not among the best 1/eta; of fewer than eta, only the best goes on."""
    go_on = max(int(len(here) / rule.eta), 1)
    return bisect_left(here, value) >= go_on


def below_median(sweep: Sweep, here: list[float], score: Score, rung: int) -> bool:
    """Whether the best it ever had is worse than what half of the others had here."""
    own = signed(sweep, score.rungs[rung])
    others = here.copy()
    others.remove(own)
    if not others:
        return False
    middle = len(others) // 2
    median = others[middle] if len(others) % 2 else (others[middle - 1] + others[middle]) / 2
    return min(signed(sweep, value) for value in score.rungs) > median


def reached(sweep: Sweep) -> bool:
    """Whether a trial was as good as was hoped for."""
    if sweep.target is None or sweep.best is None:
        return False
    return not sweep.better(sweep.target, sweep.best)


def enough(state: State, sweep: Sweep, at: float) -> Iterator[Event]:
    """No more trials begin; those that run come to their end."""
    yield SweepChanged(at=at, sweep=sweep.id, ended=True)
    for id in list(state.boards[sweep.id].trials):
        job = state.jobs.get(id)
        if job is not None and job.state is JobState.PENDING:
            yield JobCancelled(at=at, job=id)
