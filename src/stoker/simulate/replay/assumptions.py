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
    epoch_error: float = 0.0
    """Standard deviation of the logarithm of a factor per job by which all epoch times that it
    reports are wrong."""
    silent_share: float = 0.0
    """Share of the jobs that never report an epoch."""
    failing_share: float = 0.0
    """Share of the jobs that fail, each after a uniformly distributed part of its work. Policies
    that know true durations know when."""
    seed: int = 0
    """Seed of all that is drawn per job."""

    def user_estimate(self, job: TraceJob) -> float:
        """Return the estimate of a user: the duration times a log-normal factor."""
        deviation = log(self.estimate_error or 1.0)
        return job.duration * exp(self._random(job).gauss(0.0, 1.0) * deviation)

    def epoch_factor(self, job: TraceJob) -> float:
        """Return the factor by which the reported epoch times of a job are wrong."""
        if not self.epoch_error:
            return 1.0
        return self._random(job, "epochs").lognormvariate(0.0, self.epoch_error)

    def is_silent(self, job: TraceJob) -> bool:
        """Return True if a job never reports an epoch."""
        return self.silent_share > 0.0 and self._random(job, "silent").random() < self.silent_share

    def work_until_end(self, job: TraceJob) -> float:
        """Return the seconds of work after which a job ends: all of it, or less if it fails."""
        if not self.failing_share:
            return job.duration
        random = self._random(job, "failure")
        return job.duration * (random.random() if random.random() < self.failing_share else 1.0)

    def _random(self, job: TraceJob, what: str = "") -> Random:
        """Return a generator that depends only on the seed and the job."""
        return Random(f"{self.seed} {job.submit_time} {job.duration} {job.user}{what}")

    def epoch_count(self, job: TraceJob) -> int:
        """Return the epochs of a job that are known early enough, none longer than a checkpoint."""
        epochs = ceil(1 / self.measured_after) if self.measured_after else 1
        if self.checkpoint_seconds:
            epochs = max(epochs, ceil(job.duration / self.checkpoint_seconds))
        return epochs
