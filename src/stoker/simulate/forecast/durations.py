"""DurationModel: the remaining duration of each job as a distribution.

The distributions come from measured epochs, stated durations, earlier runs and other jobs. Every
simulated future samples them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from math import exp, inf
from random import Random

from msgspec import Struct

from stoker.core.explain.forecast import ForecastInput, Kind, command_key, name_key
from stoker.core.measurement.estimator import (
    attained,
    epochs_of,
    estimate,
    profile_of,
    remaining,
    restart_cost,
)
from stoker.core.model.job import Job, JobState
from stoker.core.model.spec import Spec
from stoker.core.policies.ranking import gpus_of
from stoker.core.state.state import State

EPOCH_DEVIATION, SIMILAR_DEVIATION, STATED_DEVIATION, SAME_COMMAND_DEVIATION = 0.05, 0.25, 0.5, 0.15
"""Standard deviation of the logarithm of truth over estimate: measured epochs of this job, epochs
of jobs of its kind, stated durations, runs of the same command."""
SAME_NAME_DEVIATION = 0.5
"""The same for the runs of one command, together, when only other arguments have run."""
COMMON_DEVIATION = 0.5
"""The same for all jobs without their own estimate, together, relative to the observed jobs."""
SMOOTHING_DEVIATION = 0.2
"""The same for a job with the duration of another job."""
ENDING_SECONDS = 5.0
"""Seconds that the termination of a job takes."""
TAIL_POWER, MAX_TAIL_FACTOR = 2.0, 4.0
"""Beyond the longest observation, a share of 1/x² of the jobs runs x times as long, up to a maximum
factor."""
MIN_SAME_SIZE_JOBS = 30
"""With this many observations of the same GPU count, other jobs are ignored."""
MIN_LIMITED_JOBS = 10
"""Completed jobs with a time limit that are needed to say how much of a limit is used."""
MIN_RECENT_JOBS = 10
"""With fewer recent jobs, a job of which nothing else is known has no estimate."""
MAX_SAME_COMMAND_RUNS = 10
"""Runs of the same command that count; the newest."""
DEFAULT_DURATION = (3600.0, 1.5)
"""Without any observation: the median, and the deviation of the logarithm."""

NEVER_SECONDS = 1000 * 86400.0
"""Duration of a job without an estimate where it must not be assumed to end."""


class ObservedDuration(Struct, frozen=True):
    """Duration of one job, as far as it was observed."""

    age: float
    """Age at the end, or at the last observation."""
    ended: bool = True
    entry: float = 0.0
    """Age from which on it was observed; had it ended before, it would not be on record."""


class DurationDistribution:
    """Distribution of observed durations (Kaplan-Meier estimate with late entry).

    Running jobs are censored observations. Jobs that started before the observation count from
    their entry on, because long jobs are observed more often.
    """

    def __init__(self, observations: Iterable[ObservedDuration]) -> None:
        ordered = sorted(observations, key=lambda seen: (seen.age, not seen.ended))
        entries = sorted(seen.entry for seen in ordered)
        self.times: list[float] = []
        self.survival: list[float] = []
        """Share of the jobs that runs longer than each of these times."""
        share = 1.0
        for index, observation in enumerate(ordered):
            if observation.ended:
                at_risk = bisect_left(entries, observation.age) - index
                share *= 1 - 1 / max(at_risk, 1)
                self.times.append(observation.age)
                self.survival.append(share)

    def __len__(self) -> int:
        return len(self.times)

    def survival_at(self, age: float) -> float:
        """Return the share of the jobs that runs longer."""
        index = bisect_right(self.times, age)
        return self.survival[index - 1] if index else 1.0

    def total_duration(self, age: float, probability: float) -> float:
        """Return the duration that a job of this age exceeds with this probability."""
        share = self.survival_at(age)
        target = probability * share
        for index in range(bisect_right(self.times, age), len(self.times)):
            if self.survival[index] <= target:
                return self.times[index]
        # Beyond the longest observation: a power law.
        begin = max(age, self.times[-1] if self.times else 0.0)
        end = self.survival_at(begin)
        factor = end / target if target > 0 and end > 0 else 1 / max(probability, 1e-9)
        return begin * min(float(max(factor, 1.0) ** (1 / TAIL_POWER)), MAX_TAIL_FACTOR)


class DurationEstimate(Struct, frozen=True):
    """Distribution of the remaining seconds of one job."""

    kind: Kind
    basis: str
    median: float = 0.0
    """The median; 0: as in `distribution`."""
    log_deviation: float = 0.0
    distribution: DurationDistribution | None = None
    scale: float = 1.0
    """Factor of `distribution`."""
    age: float = 0.0
    max_remaining: float = inf
    min_total: float = 0.0
    """Run time so far of a running job with the same command."""
    quantile: float | None = None
    """Quantile that all jobs with the same command have in this future."""

    def remaining(self, random: Random | None) -> float:
        """Return a random sample; without `random` the median, else the bound if there is none."""
        if random is None and self.kind is Kind.LIMIT:
            return self.max_remaining
        if random is None and self.kind is Kind.UNKNOWN:
            return NEVER_SECONDS
        noise = exp(self.log_deviation * random.gauss(0.0, 1.0)) if random is not None else 1.0
        if self.distribution is None:
            return min(max(self.median * noise, 1.0), self.max_remaining)
        probability = 0.5 if random is None else self.quantile or 1.0 - random.random()
        age = max(self.age, self.min_total) / self.scale
        total = self.distribution.total_duration(age, probability) * self.scale
        # Only the remaining time is uncertain.
        return min(max((total - self.age) * noise, 1.0), self.max_remaining)


class DurationModel:
    """Duration estimates of all jobs of a state."""

    def __init__(self, input: ForecastInput, state: State, random: Random | None = None) -> None:
        """With `random`, the recent jobs are a bootstrap sample."""
        self.input, self.state, self.random = input, state, random
        self.estimates: dict[int, DurationEstimate] = {}
        self.common_factor = (
            exp(COMMON_DEVIATION * random.gauss(0.0, 1.0)) if random is not None else 1.0
        )
        observed = [
            (job, duration) for job in input.jobs if (duration := self._observe(job)) is not None
        ]
        if random is not None and observed:
            observed = random.choices(observed, k=len(observed))
        self.all_durations = DurationDistribution(duration for _, duration in observed)
        sizes: dict[float, list[ObservedDuration]] = {}
        for job, duration in observed:
            sizes.setdefault(self._gpu_count(job), []).append(duration)
        self.by_gpu_count = {
            size: DurationDistribution(durations) for size, durations in sizes.items()
        }
        limits = [(duration, input.specs[job.spec].limit) for job, duration in observed]
        self.limit_use = DurationDistribution(
            _as_share_of_limit(duration, limit) for duration, limit in limits if limit
        )
        self.runs: dict[tuple[str, str | None], DurationDistribution] = {}
        self.common_draws: dict[tuple[str, str], tuple[float, float]] = {}
        self.longest_running: dict[tuple[str, str], float] = {}
        running: dict[str, list[ObservedDuration]] = {}
        for job in input.jobs:
            if job.placement is not None and name_key(job) in input.runs:
                key, age = self._key(job), attained(job, input.at)
                self.longest_running[key] = max(self.longest_running.get(key, 0.0), age)
                running.setdefault(key[0], []).append(ObservedDuration(age, ended=False))
        for name, runs in input.runs.items():
            completed = (ObservedDuration(seconds) for _, seconds in runs)
            self.runs[name, None] = DurationDistribution([*completed, *running.get(name, ())])
            commands: dict[str, list[float]] = {}
            for command, seconds in runs:
                commands.setdefault(command, []).append(seconds)
            for command, durations in commands.items():
                self.runs[name, command] = DurationDistribution(
                    map(ObservedDuration, durations[:MAX_SAME_COMMAND_RUNS])
                )

    def _observe(self, job: Job) -> ObservedDuration | None:
        """Return the observed duration of a job, the predicted one if its epochs were measured.

        None if the job has not run.
        """
        at, since = self.input.at, self.input.since
        age = run_seconds(job) if job.finished else attained(job, at)
        if age <= 0:
            return None
        last = job.ended_at if job.finished and job.ended_at is not None else at
        entry = max(age - max(last - since, 0.0), 0.0)
        left = None if job.finished else self._measured_remaining(job)
        # A cancelled job would have run longer: a censored observation.
        ended = job.finished and job.state is not JobState.CANCELLED
        return (
            ObservedDuration(age, ended, entry)
            if left is None
            else ObservedDuration(age + left, entry=entry)
        )

    def _measured_remaining(self, job: Job) -> float | None:
        """Return the remaining seconds by the measured epochs of the job, None without any."""
        spec = self.input.specs[job.spec]
        epochs = epochs_of(job, spec)
        progress, families, at = job.progress, self.state.record.profiles, self.input.at
        if epochs is None or progress.epoch_time is None:
            return None
        left = remaining(families, self.state.cluster, job, spec, at) or 0.0
        if (
            job.placement is not None
            and progress.epoch_started_at is None
            and job.started_at is not None
        ):
            # Restarted, and its first epoch since then has not finished.
            run = at - job.started_at - job.slack - restart_cost(profile_of(families, job, spec))
            left -= min(max(run, 0.0), max(left - progress.epoch_time[2], 0.0))
        return left

    def _gpu_count(self, job: Job) -> float:
        return gpus_of(self.input.specs[job.spec].request)

    def estimate_of(self, job: Job) -> DurationEstimate:
        """Return the estimate of a job."""
        if job.id not in self.estimates:
            self.estimates[job.id] = self._estimate(job)
        return self.estimates[job.id]

    def _estimate(self, job: Job) -> DurationEstimate:
        spec, at = self.input.specs[job.spec], self.input.at
        record = self.state.record
        if job.state is JobState.COMPLETING and job.ending != "stop":
            return DurationEstimate(Kind.ORDER, "the end that was requested", ENDING_SECONDS)
        measured, age = self._measured_remaining(job), attained(job, at)
        if measured is not None:
            return DurationEstimate(Kind.EPOCHS, "its measured epochs", measured, EPOCH_DEVIATION)
        max_remaining = max(spec.limit - age, 1.0) if spec.limit else inf
        left = remaining(record.profiles, self.state.cluster, job, spec, at)
        has_epochs = left is not None and self._has_epoch_estimate(job, spec)
        key = self._key(job)
        same = self.runs.get(key)
        if same is not None and not has_epochs:
            basis = f"{_plural(len(same), 'earlier run')} of this command"
            scale = exp(SAME_COMMAND_DEVIATION / len(same) ** 0.5 * self._common_sample(key)[0])
            return DurationEstimate(
                Kind.RUNS, basis, 0, SAME_COMMAND_DEVIATION, same, scale, age, max_remaining
            )
        if left is not None and has_epochs:
            return DurationEstimate(
                Kind.SIMILAR, f"measured epochs of earlier {job.name} runs", left, SIMILAR_DEVIATION
            )
        if left is not None:
            left = max(left, 0.1 * age)
            return DurationEstimate(
                Kind.STATED, "its stated duration", left, STATED_DEVIATION,
                max_remaining=max_remaining,
            )  # fmt: skip
        named = self.runs.get((key[0], None))
        if named is not None:
            basis = f"{_plural(len(named), 'run')} of {job.name} with other arguments"
            normal, quantile = self._common_sample(key)
            scale = exp(SAME_NAME_DEVIATION * normal) * self.common_factor
            min_total = self.longest_running.get(key, 0.0)
            return DurationEstimate(
                Kind.SIMILAR, basis, 0, SAME_COMMAND_DEVIATION, named, scale, age, max_remaining,
                min_total, quantile,
            )  # fmt: skip
        return self._estimate_from_others(job, spec.limit, age, max_remaining)

    def _key(self, job: Job) -> tuple[str, str]:
        return name_key(job), command_key(job, self.input.specs[job.spec])

    def _common_sample(self, key: tuple[str, str]) -> tuple[float, float]:
        """Return a normal and a uniform sample, the same for all runs of a command."""
        if self.random is None:
            return 0.0, 0.5
        if key not in self.common_draws:
            self.common_draws[key] = self.random.gauss(0.0, 1.0), 1.0 - self.random.random()
        return self.common_draws[key]

    def _has_epoch_estimate(self, job: Job, spec: Spec) -> bool:
        if epochs_of(job, spec) is None:
            return False
        estimated = estimate(
            self.state.record.profiles, self.state.cluster, job, spec, self.input.at
        )
        return estimated.epoch_seconds is not None

    def _estimate_from_others(
        self, job: Job, limit: int | None, age: float, max_remaining: float
    ) -> DurationEstimate:
        if limit and len(self.limit_use) >= MIN_LIMITED_JOBS:
            used = self.limit_use
            basis = f"its time limit and the share that {len(used)} other jobs used of theirs"
            scale = limit * self.common_factor**0.5
            return DurationEstimate(
                Kind.SIMILAR, basis, 0, SMOOTHING_DEVIATION, used, scale, age, max_remaining
            )
        if limit:
            half = max(limit / 2 - age, 0.2 * limit)
            return DurationEstimate(
                Kind.LIMIT, "its time limit", half, 0.5, max_remaining=max_remaining
            )
        same_size = self.by_gpu_count.get(self._gpu_count(job))
        observed = self.all_durations
        if same_size is not None and len(same_size) >= MIN_SAME_SIZE_JOBS:
            observed = same_size
        kind, basis = Kind.SIMILAR, f"the durations of {len(observed)} recent jobs"
        if len(observed) < MIN_RECENT_JOBS:
            kind, basis = Kind.UNKNOWN, "no earlier run of its command and no time limit"
        if len(observed):
            return DurationEstimate(
                kind, basis, 0, SMOOTHING_DEVIATION, observed, self.common_factor, age,
                max_remaining,
            )  # fmt: skip
        median, deviation = DEFAULT_DURATION
        return DurationEstimate(kind, basis, max(median, age), deviation)


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _as_share_of_limit(observed: ObservedDuration, limit: int) -> ObservedDuration:
    """Return an observation in units of the time limit."""
    return ObservedDuration(
        min(observed.age / limit, 1.0), observed.ended, min(observed.entry / limit, 0.99)
    )


def run_seconds(job: Job) -> float:
    """Return the seconds that a finished job ran."""
    return sum(past.ended_at - past.started_at for past in job.past if past.started_at is not None)
