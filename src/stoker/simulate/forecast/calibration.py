"""Calibration of the forecasts: a workload is replayed, and at some moments a forecast is made.

Each forecast is compared with what happened later in the same replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from statistics import median

import msgspec
from msgspec import Struct

from stoker.core.cluster import NodeFacts, Placement
from stoker.core.outlook import (
    Kind,
    Outlook,
    Samples,
    Span,
    command_key,
    interval,
    name_key,
    question,
)
from stoker.simulate.forecast.futures import PLAYS, foresee
from stoker.simulate.replay.recorder import RunRecorder
from stoker.simulate.replay.replay import JobRun, Replay, ReplayAssumptions
from stoker.simulate.workload import TraceJob, Workload

LEAST = 60.0
"""Seconds: an error is compared with the time to come, but not with less than this."""
FIRST, LAST = 0.2, 0.7
"""The share of the submissions before the first moment, and before the last one."""
KINDS = ("start", "end of pending", "end of running")
RUNS = 50
"""Completed runs of a name that count, as in the daemon."""


class Score(Struct, kw_only=True):
    """How well the forecasts of one event and one basis fit."""

    kind: str
    """What was forecast: one of KINDS."""
    basis: str
    """The kind of its basis; empty: all of them."""
    count: int
    within: float
    """The share of truths in the range; for an upper bound, not above it."""
    before: float
    """The share that was earlier than the range."""
    after: float
    error: float
    """The median of the error, as a share of the time that was to come."""


class _Seen(Struct):
    """One forecast, and what to compare it with."""

    kind: str
    job: int
    at: float
    span: Span


class _Notes(RunRecorder):
    """All starts of every job: a preempted job starts again."""

    def __init__(self, nodes: list[NodeFacts], pieces: int) -> None:
        super().__init__(nodes, pieces)
        self.starts: dict[int, list[float]] = {}

    def attempt_started(self, id: int, load: TraceJob, at: float, placement: Placement) -> None:
        super().attempt_started(id, load, at, placement)
        self.starts.setdefault(id, []).append(at)

    def actual_time(self, kind: str, job: int, after: float) -> float | None:
        """What became of it; None when the run was over before."""
        if kind == "start":
            return next((at for at in self.starts.get(job, ()) if at >= after), None)
        return self.ends.get(job)

    @cached_property
    def ends(self) -> dict[int, float]:
        """When each job ended; asked for when all is over."""
        return {result.job + 1: result.end_time for result in self.results}


class _WithCommands(Replay):
    """Jobs have their names as commands, and completed runs are remembered."""

    def __init__(
        self, workload: Workload, nodes: list[NodeFacts], policy: str,
        parameters: dict[str, float] | None, assumed: ReplayAssumptions | None,
    ) -> None:  # fmt: skip
        super().__init__(workload, nodes, policy, parameters, assumed)
        self.completed_runs: dict[str, list[tuple[str, float]]] = {}

    def _argv(self, id: int, load: TraceJob) -> tuple[str, ...]:
        return tuple(load.name.split()) or super()._argv(id, load)

    def _end_attempt(self, id: int, course: JobRun, stopped: bool = False) -> list[object]:
        job = self.state.jobs[id]
        if not stopped:
            run = command_key(job, self.state.spec(job)), course.job.duration
            self.completed_runs.setdefault(name_key(job), []).insert(0, run)
        return super()._end_attempt(id, course, stopped)


def calibrate(
    workload: Workload,
    nodes: list[NodeFacts],
    policy: str,
    moments: int = 10,
    assumed: ReplayAssumptions | None = None,
    plays: int = PLAYS,
    parameters: dict[str, float] | None = None,
    commands: bool = False,
) -> list[Score]:
    """Forecast at moments among the submissions: after some history, while others still come.

    With `commands`, the names of the jobs are commands with arguments, whose runs are history.
    """
    arrivals = [load.submit_time for load in workload.jobs]
    first, last = int(len(arrivals) * FIRST), int(len(arrivals) * LAST)
    step = max((last - first) // moments, 1)
    todo = sorted({arrivals[at] for at in range(first, last, step)}, reverse=True)
    seen: list[_Seen] = []

    def look(_: int) -> None:
        if todo and replay.now >= todo[-1]:
            todo.pop()
            runs = {}
            if isinstance(replay, _WithCommands):
                runs = {name: some[:RUNS] for name, some in replay.completed_runs.items()}
            asked = question(replay.state, replay.now, replay.now, runs)
            answer = foresee(msgspec.json.encode(asked), plays=plays, seed=len(todo))
            seen.extend(_noted(answer))

    replay = (_WithCommands if commands else Replay)(workload, nodes, policy, parameters, assumed)
    replay.recorder = notes = _Notes(nodes, 0)
    replay.run(look)
    bases = ["", *dict.fromkeys(each.span.kind.value for each in seen)]
    return [_score(kind, basis, seen, notes) for kind in KINDS for basis in bases]


def _noted(answer: Outlook) -> list[_Seen]:
    found: list[_Seen] = []

    def note(kind: str, job: int, samples: Samples | None) -> None:
        span = interval(samples, answer.at) if samples is not None else None
        if span is not None:
            found.append(_Seen(kind, job, answer.at, span))

    for each in answer.jobs:
        note("start", each.job, each.start)
        note("end of running" if each.start is None else "end of pending", each.job, each.end)
    return found


def _score(kind: str, basis: str, seen: Sequence[_Seen], notes: _Notes) -> Score:
    count = early = late = 0
    errors: list[float] = []
    for each in seen:
        real, span = notes.actual_time(kind, each.job, each.at), each.span
        if each.kind != kind or real is None or (basis and span.kind != basis):
            continue
        if span.likely is None:
            continue  # later than was simulated: there is no range
        count += 1
        early += real < span.low - 1.0 and span.kind is not Kind.LIMIT
        late += span.high is not None and real > span.high + 1.0
        errors.append(abs(span.likely - real) / max(real - each.at, LEAST))
    whole = max(count, 1)
    return Score(
        kind=kind, basis=basis, count=count, within=1 - (early + late) / whole,
        before=early / whole, after=late / whole, error=median(errors) if errors else 0.0,
    )  # fmt: skip
