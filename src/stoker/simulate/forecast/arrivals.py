"""ArrivalModel: jobs that may still be submitted.

The submissions of the recent past are repeated with a random shift in time. Without further
arrivals a forecast would be too early wherever a later job may start first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import exp
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.explain.forecast import ForecastInput
from stoker.core.measurement.estimator import attained
from stoker.core.model.job import Job, JobState
from stoker.core.model.spec import Spec
from stoker.simulate.forecast.durations import DurationModel, run_seconds

DAY_SECONDS = 86400.0
"""A shorter record of submissions is repeated only once."""
MIN_SUBMISSIONS = 5
"""With fewer submissions on record, no arrivals are simulated."""
MAX_ARRIVALS = 5000
"""Arrivals in one simulated future."""


class Arrival(Struct):
    """A simulated submission."""

    submit_time: float
    template: Job
    spec: Spec
    duration: float


class ArrivalModel:
    """Samples submissions from the recent past."""

    def __init__(self, input: ForecastInput, durations: DurationModel) -> None:
        self.input, self.durations = input, durations
        self.window = max(input.at - input.since, 0.0)
        batches: dict[float, list[Job]] = {}
        for job in sorted(input.jobs, key=lambda job: job.submitted_at):
            cancelled = job.state is JobState.CANCELLED and not job.past
            if job.submitted_at >= input.since and not cancelled:
                batches.setdefault(job.submitted_at, []).append(job)
        self.batches = batches if len(batches) >= MIN_SUBMISSIONS else {}
        self.names = Counter(job.name for jobs in batches.values() for job in jobs)

    def sample(self, random: Random) -> list[Arrival]:
        """Return the arrivals of one future by submit time."""
        arrivals: list[Arrival] = []
        for at, jobs in self._arrival_times(random):
            arrivals += [self._copy_of(job, at, random) for job in jobs]
            if len(arrivals) >= MAX_ARRIVALS:
                break
        return arrivals

    def _arrival_times(self, random: Random) -> Iterator[tuple[float, list[Job]]]:
        """Yield the times and jobs of submissions: the recorded pattern with a random shift.

        Each batch occurs a Poisson-distributed number of times, so that futures differ in load.
        """
        begin, window = self.input.since, self.window
        shift = random.uniform(0.0, window)
        offsets = (
            sorted(((at - begin - shift) % window, at) for at in self.batches) if window else []
        )
        rounds = 1 if window < DAY_SECONDS else max(int(30 * DAY_SECONDS / window), 1)
        for round in range(rounds):
            for after, at in offsets:
                for _ in range(_poisson_one(random)):
                    yield self.input.at + round * window + after, self.batches[at]

    def _copy_of(self, job: Job, at: float, random: Random) -> Arrival:
        spec = self.input.specs[job.spec]
        name = spec.name if self.names[job.name] > 1 else f"{job.name} again"
        spec = replace(
            spec, name=name, dependency=None, array_limit=None, deadline_at=None, on_end=None
        )
        if job.finished:
            seconds = run_seconds(job)
        else:
            seconds = attained(job, self.input.at) + self.durations.estimate_of(job).remaining(
                random
            )
        return Arrival(at, job, spec, max(seconds, 1.0))


def _poisson_one(random: Random) -> int:
    """Return a Poisson sample with mean 1."""
    uniform, count = random.random(), 0
    probability = cumulative = exp(-1.0)
    while uniform > cumulative and count < 10:
        count += 1
        probability /= count
        cumulative += probability
    return count
