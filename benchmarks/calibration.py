"""Calibration of the forecasts: forecasts are made at several times of a replay.

Each forecast is compared with what happened later in the same replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from statistics import median

import msgspec
from msgspec import Struct

from stoker.core.explain.forecast import (
    Forecast,
    Kind,
    Samples,
    TimeInterval,
    command_key,
    forecast_input,
    name_key,
)
from stoker.core.model.resources import NodeFacts, Placement
from stoker.daemon.workers.estimates import interval
from stoker.simulate.forecast.futures import FUTURES, forecast
from stoker.simulate.replay.assumptions import ReplayAssumptions
from stoker.simulate.replay.job_run import JobRun
from stoker.simulate.replay.recorder import RunRecorder
from stoker.simulate.replay.replay import Replay
from stoker.simulate.workload import TraceJob, Workload

MIN_HORIZON_SECONDS = 60.0
"""Errors are relative to the time until the event, but at least to this many seconds."""
FIRST_FORECAST, LAST_FORECAST = 0.2, 0.7
"""Share of the submissions before the first and before the last forecast."""
KINDS = ("start", "end of pending", "end of running")
MAX_RUNS_PER_NAME = 50
"""Completed runs per name that are used, as in the daemon."""


class Score(Struct, kw_only=True):
    """Accuracy of the forecasts of one kind of event and one basis."""

    kind: str
    """The predicted event: one of KINDS."""
    basis: str
    """Kind of the basis; empty: all."""
    count: int
    within: float
    """Share of the events within the range; for an upper bound, not above it."""
    before: float
    """Share of the events before the range."""
    after: float
    error: float
    """Median error relative to the time until the event."""


class _ScoredForecast(Struct):
    """One forecast of one event."""

    kind: str
    job: int
    at: float
    span: TimeInterval


class _StartsRecorder(RunRecorder):
    """Records all starts of every job: a preempted job starts again."""

    def __init__(self, nodes: list[NodeFacts], max_segments: int) -> None:
        super().__init__(nodes, max_segments)
        self.starts: dict[int, list[float]] = {}

    def attempt_started(self, id: int, job: TraceJob, at: float, placement: Placement) -> None:
        super().attempt_started(id, job, at, placement)
        self.starts.setdefault(id, []).append(at)

    def actual_time(self, kind: str, job: int, after: float) -> float | None:
        """Return when the event happened, None if it did not."""
        if kind == "start":
            return next((at for at in self.starts.get(job, ()) if at >= after), None)
        return self.ends.get(job)

    @cached_property
    def ends(self) -> dict[int, float]:
        """End of each job; only valid after the run."""
        return {result.job + 1: result.end_time for result in self.results}


class _CommandReplay(Replay):
    """Replay of jobs with their names as commands; it records completed runs."""

    def __init__(
        self, workload: Workload, nodes: list[NodeFacts], policy: str,
        parameters: dict[str, float] | None, assumptions: ReplayAssumptions | None,
    ) -> None:  # fmt: skip
        super().__init__(workload, nodes, policy, parameters, assumptions)
        self.completed_runs: dict[str, list[tuple[str, float]]] = {}

    def _argv(self, id: int, job: TraceJob) -> tuple[str, ...]:
        return tuple(job.name.split()) or super()._argv(id, job)

    def _end_attempt(self, id: int, run: JobRun, stopped: bool = False) -> list[object]:
        job = self.state.jobs[id]
        if not stopped:
            completed = command_key(job, self.state.spec(job)), run.job.duration
            self.completed_runs.setdefault(name_key(job), []).insert(0, completed)
        return super()._end_attempt(id, run, stopped)


def calibrate(
    workload: Workload,
    nodes: list[NodeFacts],
    policy: str,
    forecasts: int = 10,
    assumptions: ReplayAssumptions | None = None,
    futures: int = FUTURES,
    parameters: dict[str, float] | None = None,
    commands: bool = False,
) -> list[Score]:
    """Score forecasts made at several times, after some history and before the last submission.

    With `commands`, the names of the jobs are commands with arguments, whose runs are history.
    """
    arrivals = [job.submit_time for job in workload.jobs]
    first, last = int(len(arrivals) * FIRST_FORECAST), int(len(arrivals) * LAST_FORECAST)
    step = max((last - first) // forecasts, 1)
    times = sorted({arrivals[index] for index in range(first, last, step)}, reverse=True)
    scored: list[_ScoredForecast] = []

    def on_progress(_: int) -> None:
        if times and replay.now >= times[-1]:
            times.pop()
            runs = {}
            if isinstance(replay, _CommandReplay):
                runs = {
                    name: some[:MAX_RUNS_PER_NAME] for name, some in replay.completed_runs.items()
                }
            input = forecast_input(replay.state, replay.now, replay.now, runs)
            answer = forecast(msgspec.json.encode(input), count=futures, seed=len(times))
            scored.extend(_scored_forecasts(answer))

    replay = (_CommandReplay if commands else Replay)(
        workload, nodes, policy, parameters, assumptions
    )
    replay.recorder = recorder = _StartsRecorder(nodes, 0)
    replay.run(on_progress)
    bases = ["", *dict.fromkeys(scored_forecast.span.kind.value for scored_forecast in scored)]
    return [_score(kind, basis, scored, recorder) for kind in KINDS for basis in bases]


def _scored_forecasts(answer: Forecast) -> list[_ScoredForecast]:
    scored: list[_ScoredForecast] = []

    def note(kind: str, job: int, samples: Samples | None) -> None:
        span = interval(samples, answer.at) if samples is not None else None
        if span is not None:
            scored.append(_ScoredForecast(kind, job, answer.at, span))

    for job_forecast in answer.jobs:
        note("start", job_forecast.job, job_forecast.start)
        note(
            "end of running" if job_forecast.start is None else "end of pending",
            job_forecast.job,
            job_forecast.end,
        )
    return scored


def _score(
    kind: str, basis: str, scored: Sequence[_ScoredForecast], recorder: _StartsRecorder
) -> Score:
    count = early = late = 0
    errors: list[float] = []
    for scored_forecast in scored:
        actual, span = (
            recorder.actual_time(kind, scored_forecast.job, scored_forecast.at),
            scored_forecast.span,
        )
        if scored_forecast.kind != kind or actual is None or (basis and span.kind != basis):
            continue
        if span.likely is None:
            continue  # later than the simulated time: no range
        count += 1
        early += actual < span.low - 1.0 and span.kind is not Kind.LIMIT
        late += span.high is not None and actual > span.high + 1.0
        errors.append(
            abs(span.likely - actual) / max(actual - scored_forecast.at, MIN_HORIZON_SECONDS)
        )
    total = max(count, 1)
    return Score(
        kind=kind, basis=basis, count=count, within=1 - (early + late) / total,
        before=early / total, after=late / total, error=median(errors) if errors else 0.0,
    )  # fmt: skip
