"""DaemonCounters: what the daemon has done since its start, for `GET /metrics`.

Counters begin at zero with every daemon, which is what Prometheus expects of a restart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from stoker.core.events import JobsSubmitted, ProcessStarted
from stoker.core.handlers.learning import usage_until
from stoker.core.model.job import NO_USAGE, AttemptId, GpuUsage, Job
from stoker.core.state.state import State
from stoker.engine import CycleResult

SHORT_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""Seconds, for what the daemon does."""
LONG_BUCKETS = (1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86400.0,
                3 * 86400.0, 7 * 86400.0)  # fmt: skip
"""Seconds, for jobs."""


class Histogram:
    """Counts of values up to each bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Add a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class DaemonCounters:
    """Counts events and durations; used by the daemon's thread only."""

    def __init__(self, state: State, now: float) -> None:
        """What the jobs in memory have done before is not counted."""
        self.events = self.submissions = 0
        self.completions: Counter[str] = Counter()
        """Finished jobs by state."""
        self.turn, self.cycle, self.commit = (Histogram(SHORT_BUCKETS) for _ in range(3))
        self.wait, self.run = (Histogram(LONG_BUCKETS) for _ in range(2))
        self.usage: dict[tuple[str, str], GpuUsage] = {}
        """Of ended attempts, by user and queue."""
        self.before = {
            AttemptId(job.id, job.attempt): usage_until(state, job, now)
            for job in state.running.values()
        }
        """Of running attempts: their usage at the start."""
        self._finished = {job.id for job in state.jobs.values() if job.finished}
        totals = {job.id: self._total(job) for job in state.jobs.values()}
        self._usage_of = {id: total for id, total in totals.items() if total != NO_USAGE}

    def observe_turn(self, seconds: float) -> None:
        """Note how long a turn of the daemon took."""
        self.turn.observe(seconds)

    def observe_cycle(self, result: CycleResult, seconds: float, state: State) -> None:
        """Note what a cycle has changed, and how long it took."""
        if not result.events:
            return
        self.cycle.observe(seconds)
        self.commit.observe(result.commit_seconds)
        self.events += len(result.events)
        for event in result.events:
            if type(event) is JobsSubmitted:
                self.submissions += event.count
            elif type(event) is ProcessStarted and (job := state.jobs.get(event.job)):
                ready = max(job.ready_at or 0.0, job.submitted_at)
                self.wait.observe(max(event.at - ready, 0.0))
        for id in result.changes.jobs:
            job = state.jobs.get(id)
            if job is not None and (job.past or job.finished or id in self._finished):
                self._observe_job(job, state)
        for id in result.changes.unloaded:
            self._finished.discard(id)
            self._usage_of.pop(id, None)

    def _observe_job(self, job: Job, state: State) -> None:
        if not job.finished:
            self._finished.discard(job.id)
        elif job.id not in self._finished:
            self._finished.add(job.id)
            self.completions[job.state.value] += 1
            if job.started_at is not None and job.ended_at is not None:
                self.run.observe(max(job.ended_at - job.started_at, 0.0))
        before, total = self._usage_of.get(job.id, NO_USAGE), self._total(job)
        if total != before:
            self._usage_of[job.id] = total
            key = (job.user, state.spec(job).queue)
            self.usage[key] = self.usage.get(key, NO_USAGE) + (total - before)

    def _total(self, job: Job) -> GpuUsage:
        """Return the usage of ended attempts, and that of a running one before the start."""
        key = AttemptId(job.id, job.attempt)
        return job.usage + self.before[key] if job.holding and key in self.before else job.usage
