"""StepTimer: counts and times training steps."""

from __future__ import annotations

from sys import maxsize
from time import perf_counter


class StepTimer:
    """Counts and times steps; measure() is on the hot path and does very little."""

    def __init__(self) -> None:
        # Steps of this epoch, time of its last and first step; then totals of earlier epochs.
        self._steps = 0
        self._last_step_at = self._first_step_at = 0.0
        self._previous_steps = 0
        self._previous_seconds = 0.0
        self._due = 1

    def measure(self) -> None:
        """Record the end of a step. The first call in an epoch only starts the clock."""
        self._steps = steps = self._steps + 1
        self._last_step_at = perf_counter()
        if steps >= self._due:
            self._beat(steps)

    def _beat(self, steps: int) -> None:
        """Called by measure() at the first step of an epoch and whenever it is due."""
        if steps == 1:
            self._first_step_at = self._last_step_at
        self._due = maxsize

    @property
    def iterations(self) -> int:
        """Steps measured so far, in all epochs."""
        return self._previous_steps + max(0, self._steps - 1)

    @property
    def mean_iteration_duration(self) -> float:
        """Mean seconds of a step, over all epochs."""
        seconds = self._previous_seconds + (self._last_step_at - self._first_step_at)
        return seconds / self.iterations if self.iterations else 0.0

    def _mean(self) -> float:
        """Return the mean seconds of a step in this epoch; 0 if unknown."""
        seconds = self._last_step_at - self._first_step_at
        return seconds / (self._steps - 1) if self._steps > 1 else 0.0

    def _close_steps(self) -> None:
        self._previous_seconds += self._last_step_at - self._first_step_at
        self._previous_steps = self.iterations
        self._steps = 0
        self._last_step_at = self._first_step_at = 0.0
        self._due = 1
