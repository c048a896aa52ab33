"""TrialScorer: metric points -> TrialMeasured events at rungs and ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import isfinite

from msgspec import Struct

from stoker.core import events as e
from stoker.core.model.job import AttemptId, Job, Score
from stoker.core.model.sweep import Sweep
from stoker.core.state.state import State
from stoker.core.state.sweep_boards import sweep_of
from stoker.daemon.reports.format import Point


class TrialProgress(Struct):
    """The metric of one attempt of a trial so far."""

    next_rung: int
    step: float
    last: float | None = None
    best: float | None = None
    has_points: bool = False


class TrialScorer:
    """Follows the metric that each sweep optimizes, and publishes it where the core needs it."""

    def __init__(self, state: Callable[[], State]) -> None:
        self.state = state
        self._progress: dict[AttemptId, TrialProgress] = {}

    def on_points(self, job: Job, key: AttemptId, points: list[Point]) -> list[e.Event]:
        """Return an event for every rung that the trial has reached with these points."""
        sweep = sweep_of(self.state(), job)
        if sweep is None or sweep.metric is None:
            return []
        progress = self._progress.get(key)
        if progress is None:
            # Points without a step are counted, in each attempt from 0: a trial that resumes
            # from a checkpoint is then compared late, but never too early.
            score = job.score or Score()
            best = score.value if sweep.best_of else None  # that of earlier attempts counts
            progress = self._progress[key] = TrialProgress(len(score.rungs), 0.0, best=best)
        events: list[e.Event] = []
        for point in points:
            value = point.values.get(sweep.metric)
            if value is not None:
                events += self._add_point(key, sweep, progress, point.step, value)
        return events

    def _add_point(
        self,
        key: AttemptId,
        sweep: Sweep,
        progress: TrialProgress,
        step: float | None,
        value: float,
    ) -> list[e.Event]:
        progress.has_points = True
        progress.step = step if step is not None else progress.step + 1
        progress.last = value if isfinite(value) else None
        is_better = progress.last is not None and (
            progress.best is None or sweep.is_better(progress.last, progress.best)
        )
        progress.best = progress.last if is_better else progress.best
        rungs = sweep.rule.rungs if sweep.rule is not None else ()
        events: list[e.Event] = []
        while progress.next_rung < len(rungs) and progress.step >= rungs[progress.next_rung]:
            events.append(
                e.TrialMeasured(
                    at=time.time(), job=key[0], attempt=key[1], step=progress.step,
                    rung=progress.next_rung, value=self._objective(sweep, progress),
                )
            )  # fmt: skip
            progress.next_rung += 1
        return events

    def on_end(self, job: Job, key: AttemptId) -> list[e.Event]:
        """Return the final value of an attempt that has ended."""
        sweep, progress = sweep_of(self.state(), job), self._progress.pop(key, None)
        if sweep is None or progress is None or not progress.has_points:
            return []
        return [
            e.TrialMeasured(
                at=time.time(), job=job.id, attempt=key[1], step=progress.step, final=True,
                value=self._objective(sweep, progress),
            )
        ]  # fmt: skip

    @staticmethod
    def _objective(sweep: Sweep, progress: TrialProgress) -> float | None:
        return progress.best if sweep.best_of else progress.last
