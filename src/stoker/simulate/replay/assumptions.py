"""ReplayAssumptions: what a trace does not record."""

from __future__ import annotations

from math import ceil, exp, log
from random import Random

from msgspec import Struct

from stoker.simulate.workload import TraceJob


class ReplayAssumptions(Struct, frozen=True, kw_only=True):
    """Behaviour of jobs that a trace does not record."""

    measured_after: float = 0.05
    """Share of a job's work after which its epoch time is known."""
    checkpoint_seconds: float = 600.0
    """Maximum seconds of work between two checkpoints; also the maximum length of an epoch."""
    restart_seconds: float = 60.0
    """Seconds that a job needs after every restart before it makes progress."""
    non_preemptible: bool = False
    """Jobs save no checkpoints, so they cannot be preempted."""
    time_limits_only: bool = False
    """Jobs report no epochs; the planner has only the time limits."""
    estimate_error: float | None = None
    """Jobs report no epochs but have an expected duration (`--expect`), two thirds of them right
    within this factor. None: only policies that plan with true durations know them."""
    seed: int = 0
    """Seed of the estimates."""

    def user_estimate(self, job: TraceJob) -> float:
        """Return the estimate of a user: the duration times a log-normal factor."""
        random = Random(f"{self.seed} {job.submit_time} {job.duration} {job.user}")
        return job.duration * exp(random.gauss(0.0, 1.0) * log(self.estimate_error or 1.0))

    def epoch_count(self, job: TraceJob) -> int:
        """Return the epochs of a job that are known early enough, none longer than a checkpoint."""
        epochs = ceil(1 / self.measured_after) if self.measured_after else 1
        if self.checkpoint_seconds:
            epochs = max(epochs, ceil(job.duration / self.checkpoint_seconds))
        return epochs
