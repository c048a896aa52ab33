"""The steps of a training, and how long they take."""

from __future__ import annotations

from sys import maxsize
from time import perf_counter


class StepTimer:
    """Counts and times steps; measure() is called so often that it does next to nothing."""

    def __init__(self) -> None:
        # The steps of this epoch, the clock of its first and last; then those of earlier epochs.
        self._steps = 0
        self._clock = self._started = 0.0
        self._earlier = 0
        self._earlier_seconds = 0.0
        self._due = 1

    def measure(self) -> None:
        """A training step is over. The first call in an epoch only starts the clock."""
        self._steps = steps = self._steps + 1
        self._clock = perf_counter()
        if steps >= self._due:
            self._beat(steps)

    def _beat(self, steps: int) -> None:
        """What measure() does once in a while: at the first step, and when it is due."""
        if steps == 1:
            self._started = self._clock
        self._due = maxsize

    @property
    def iterations(self) -> int:
        """Steps measured so far, in all epochs."""
        return self._earlier + max(0, self._steps - 1)

    @property
    def mean_iteration_duration(self) -> float:
        """Mean seconds of those."""
        seconds = self._earlier_seconds + (self._clock - self._started)
        return seconds / self.iterations if self.iterations else 0.0

    def _mean(self) -> float:
        """Mean seconds of a step in this epoch; 0: not known."""
        return (self._clock - self._started) / (self._steps - 1) if self._steps > 1 else 0.0

    def _close_steps(self) -> None:
        self._earlier_seconds += self._clock - self._started
        self._earlier = self.iterations
        self._steps = 0
        self._clock = self._started = 0.0
        self._due = 1
