"""JobRun: the state of one job in virtual time."""

from __future__ import annotations

from math import inf

from stoker.core.model.resources import Placement
from stoker.simulate.workload import TraceJob


class JobRun:
    """A job that was submitted: its work done, and its current attempt."""

    __slots__ = (
        "attempt", "end_time", "epoch_factor", "is_silent", "job", "placement", "rate",
        "reported_epochs", "stop_time", "version", "work_done", "work_start", "work_until_end",
    )  # fmt: skip

    def __init__(self, job: TraceJob) -> None:
        self.job = job
        self.work_until_end = job.duration
        """Seconds of work after which it ends; less than its duration if it fails."""
        self.epoch_factor = 1.0
        """Reported epoch time divided by the true one."""
        self.is_silent = False
        """It never reports an epoch."""
        self.work_done = 0.0
        """Seconds of work done before the current attempt."""
        self.attempt = 0
        self.work_start = 0.0
        """When this attempt starts to make progress, after its start-up."""
        self.rate = 1.0
        self.end_time = inf
        self.stop_time = inf
        """When it stops, if a stop was requested."""
        self.placement: Placement | None = None
        self.reported_epochs = 0
        """Epochs reported to the core."""
        self.version = 0
        """Changes with every attempt and rate, so that older timers are ignored."""

    def work_at(self, at: float) -> float:
        """Return the seconds of work done at a time."""
        work = self.work_done + max(at - self.work_start, 0.0) * self.rate
        return min(work, self.work_until_end)

    def time_of(self, work: float) -> float:
        """Return when this much work is done."""
        return self.work_start + max(work - self.work_done, 0.0) / self.rate
