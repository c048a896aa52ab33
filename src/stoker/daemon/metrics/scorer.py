"""What trials report of the figure that their sweep looks at."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import isfinite

from msgspec import Struct

from stoker.core import events as e
from stoker.core.job import Job, Score
from stoker.core.state import State
from stoker.core.sweep import Sweep
from stoker.core.trials import sweep_of
from stoker.daemon.reports.attempt_report import Key
from stoker.daemon.reports.format import Point


class TrialProgress(Struct):
    """How one attempt of a trial stands."""

    rung: int
    """The next rung."""
    step: float
    last: float | None = None
    best: float | None = None
    heard: bool = False


class TrialScorer:
    """Listens to trials, and tells the engine the little that it needs to know of it."""

    def __init__(self, state: Callable[[], State]) -> None:
        self.state = state
        self.standings: dict[Key, TrialProgress] = {}

    def news(self, job: Job, key: Key, points: list[Point], again: bool) -> list[e.Event]:
        """These were reported: a fact for every rung that the trial has come to."""
        sweep = sweep_of(self.state(), job)
        if sweep is None or sweep.metric is None:
            return []
        standing = self.standings.get(key)
        if standing is None:
            # Reports without a step are counted, in each attempt anew: one that goes on from a
            # checkpoint is then compared late, but never before its time.
            score = job.score or Score()
            best = score.value if sweep.best_of else None  # that of earlier attempts counts
            standing = self.standings[key] = TrialProgress(len(score.rungs), 0.0, best=best)
        told: list[e.Event] = []
        for point in points:
            value = point.values.get(sweep.metric)
            if value is not None:
                told += self._heard(key, sweep, standing, point.step, value)
        return told

    def _heard(
        self, key: Key, sweep: Sweep, standing: TrialProgress, step: float | None, value: float
    ) -> list[e.Event]:
        standing.heard = True
        standing.step = step if step is not None else standing.step + 1
        standing.last = value if isfinite(value) else None
        better = standing.last is not None and (
            standing.best is None or sweep.better(standing.last, standing.best)
        )
        standing.best = standing.last if better else standing.best
        rungs = sweep.rule.rungs if sweep.rule is not None else ()
        told: list[e.Event] = []
        while standing.rung < len(rungs) and standing.step >= rungs[standing.rung]:
            told.append(
                e.TrialMeasured(
                    at=time.time(), job=key[0], attempt=key[1], step=standing.step,
                    rung=standing.rung, value=self._worth(sweep, standing),
                )
            )  # fmt: skip
            standing.rung += 1
        return told

    def over(self, job: Job, key: Key) -> list[e.Event]:
        """An attempt is over: what it came to."""
        sweep, standing = sweep_of(self.state(), job), self.standings.pop(key, None)
        if sweep is None or standing is None or not standing.heard:
            return []
        return [
            e.TrialMeasured(
                at=time.time(), job=job.id, attempt=key[1], step=standing.step, final=True,
                value=self._worth(sweep, standing),
            )
        ]  # fmt: skip

    @staticmethod
    def _worth(sweep: Sweep, standing: TrialProgress) -> float | None:
        return standing.best if sweep.best_of else standing.last
