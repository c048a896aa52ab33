"""The duration of each job as a distribution, from what was measured, stated or seen of others.

Every simulated future draws from these distributions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from math import exp, inf
from random import Random

from msgspec import Struct

from stoker.core.estimate import attained, epochs_of, estimate, known, remaining, restart_cost
from stoker.core.job import Job, Spec
from stoker.core.lifecycle import JobState
from stoker.core.outlook import Kind, Question, command_key, name_key
from stoker.core.policy.rank import gpus_of
from stoker.core.state import State

MEASURED, ALIKE, SAID, SAME = 0.05, 0.25, 0.5, 0.15
"""Standard deviation of the logarithm of truth over estimate: measured epochs of this job, epochs
of jobs of its kind, stated durations, runs of the same command."""
NAMED = 0.5
"""The same for the runs of one command, together, when only other arguments have run."""
COMMON = 0.5
"""By how much, all together, those of whom nothing is known differ from those who were seen."""
SMOOTH = 0.2
"""The same for a job that lasts as long as some other one did."""
ENDING = 5.0
"""Seconds that the end of a job takes that is being ended."""
POWER, LONGEST = 2.0, 4.0
"""Of those who have outlasted all that was seen, a share of 1/x² lasts x times as long, and nobody
longer than this."""
ENOUGH = 30
"""So many others of the same size say more than all others do."""
USED = 10
"""Completed jobs with a time limit that are needed to say how much of a limit is used."""
FEWEST_OTHERS = 10
"""With fewer recent jobs, a job of which nothing else is known has no estimate."""
SAME_RUNS = 10
"""Runs of the same command that count; the newest."""
NOTHING_KNOWN = (3600.0, 1.5)
"""When there is nothing at all to go by: the median, and the deviation of the logarithm."""


NEVER = 1000 * 86400.0
"""Seconds that a job runs of which nothing is known, where it must not be assumed to end."""


class Life(Struct, frozen=True):
    """How long one job lasted, as far as that was seen."""

    age: float
    """When it ended, or was looked at last."""
    ended: bool = True
    entry: float = 0.0
    """It was seen from this age on; had it ended before, nobody would know of it."""


class DurationDistribution:
    """How long others lasted.

    Those who still run count as having lasted longer than that, and those who began before
    anybody looked count from there on (the estimate of Kaplan and Meier, with late entry): who
    lasts long is seen more often.
    """

    def __init__(self, lives: Iterable[Life]) -> None:
        known = sorted(lives, key=lambda life: (life.age, not life.ended))
        entries = sorted(life.entry for life in known)
        self.times: list[float] = []
        self.survival: list[float] = []
        """The share that lasts longer than each of these times."""
        share = 1.0
        for place, life in enumerate(known):
            if life.ended:
                there = bisect_left(entries, life.age) - place
                share *= 1 - 1 / max(there, 1)
                self.times.append(life.age)
                self.survival.append(share)

    def __len__(self) -> int:
        return len(self.times)

    def survival_at(self, age: float) -> float:
        """The share that lasts longer."""
        place = bisect_right(self.times, age)
        return self.survival[place - 1] if place else 1.0

    def total_duration(self, age: float, chance: float) -> float:
        """How long one lasts in all that has lasted so long: longer than this by that chance."""
        share = self.survival_at(age)
        aim = chance * share
        for place in range(bisect_right(self.times, age), len(self.times)):
            if self.survival[place] <= aim:
                return self.times[place]
        # Beyond all that was seen, half of them last half as long again: a power law.
        begin = max(age, self.times[-1] if self.times else 0.0)
        end = self.survival_at(begin)
        times = end / aim if aim > 0 and end > 0 else 1 / max(chance, 1e-9)
        return begin * min(float(max(times, 1.0) ** (1 / POWER)), LONGEST)


class DurationEstimate(Struct, frozen=True):
    """The distribution of the seconds that one job needs from now on."""

    kind: Kind
    basis: str
    median: float = 0.0
    """The median; 0: as the lifetimes say."""
    log_deviation: float = 0.0
    distribution: DurationDistribution | None = None
    scale: float = 1.0
    """The factor of the lifetimes."""
    age: float = 0.0
    max_remaining: float = inf
    min_total: float = 0.0
    """A running job with the same command has lasted this long already."""
    quantile: float | None = None
    """The quantile that all jobs with the same command have in this future."""

    def remaining(self, random: Random | None) -> float:
        """Return a random sample; without `random` the median, else the bound if there is none."""
        if random is None and self.kind is Kind.LIMIT:
            return self.max_remaining
        if random is None and self.kind is Kind.UNKNOWN:
            return NEVER
        wobble = exp(self.log_deviation * random.gauss(0.0, 1.0)) if random is not None else 1.0
        if self.distribution is None:
            return min(max(self.median * wobble, 1.0), self.max_remaining)
        chance = 0.5 if random is None else self.quantile or 1.0 - random.random()
        total = (
            self.distribution.total_duration(max(self.age, self.min_total) / self.scale, chance)
            * self.scale
        )
        # What is uncertain is the time that is left, not the time that has passed.
        return min(max((total - self.age) * wobble, 1.0), self.max_remaining)


class DurationModel:
    """The duration of every job of a state."""

    def __init__(self, asked: Question, state: State, random: Random | None = None) -> None:
        """With `random`, the recent jobs are a bootstrap sample."""
        self.input, self.state, self.random = asked, state, random
        self.estimates: dict[int, DurationEstimate] = {}
        self.common_factor = exp(COMMON * random.gauss(0.0, 1.0)) if random is not None else 1.0
        seen = [(job, life) for job in asked.jobs if (life := self._observe(job)) is not None]
        if random is not None and seen:
            seen = random.choices(seen, k=len(seen))
        self.all_durations = DurationDistribution(life for _, life in seen)
        sizes: dict[float, list[Life]] = {}
        for job, life in seen:
            sizes.setdefault(self._gpu_count(job), []).append(life)
        self.by_gpu_count = {size: DurationDistribution(some) for size, some in sizes.items()}
        limits = [(life, asked.specs[job.spec].limit) for job, life in seen]
        self.limit_use = DurationDistribution(
            _share(life, limit) for life, limit in limits if limit
        )
        self.runs: dict[tuple[str, str | None], DurationDistribution] = {}
        self.common_draws: dict[tuple[str, str], tuple[float, float]] = {}
        self.longest_running: dict[tuple[str, str], float] = {}
        going: dict[str, list[Life]] = {}
        for job in asked.jobs:
            if job.placement is not None and name_key(job) in asked.runs:
                key, age = self._key(job), attained(job, asked.at)
                self.longest_running[key] = max(self.longest_running.get(key, 0.0), age)
                going.setdefault(key[0], []).append(Life(age, ended=False))
        for name, runs in asked.runs.items():
            lives = (Life(seconds) for _, seconds in runs)
            self.runs[name, None] = DurationDistribution([*lives, *going.get(name, ())])
            commands: dict[str, list[float]] = {}
            for command, seconds in runs:
                commands.setdefault(command, []).append(seconds)
            for command, some in commands.items():
                self.runs[name, command] = DurationDistribution(map(Life, some[:SAME_RUNS]))

    def _observe(self, job: Job) -> Life | None:
        """What was seen of one job; None if it has not run. Of whom has been measured, more."""
        at, since = self.input.at, self.input.since
        age = ran(job) if job.finished else attained(job, at)
        if age <= 0:
            return None
        last = job.ended_at if job.finished and job.ended_at is not None else at
        entry = max(age - max(last - since, 0.0), 0.0)
        left = None if job.finished else self._measured_remaining(job)
        # Of one that was cancelled it is only known that it took longer.
        ended = job.finished and job.state is not JobState.CANCELLED
        return Life(age, ended, entry) if left is None else Life(age + left, entry=entry)

    def _measured_remaining(self, job: Job) -> float | None:
        """Seconds that it needs from now on, if its own epochs say so."""
        spec = self.input.specs[job.spec]
        epochs = epochs_of(job, spec)
        progress, families, at = job.progress, self.state.rest.families, self.input.at
        if epochs is None or progress is None or progress.pace is None:
            return None
        left = remaining(families, self.state.cluster, job, spec, at) or 0.0
        if job.placement is not None and progress.counted_at is None and job.started_at is not None:
            # It goes on, and its first epoch since then is not over yet.
            run = at - job.started_at - job.slack - restart_cost(known(families, job, spec))
            left -= min(max(run, 0.0), max(left - progress.pace[2], 0.0))
        return left

    def _gpu_count(self, job: Job) -> float:
        return gpus_of(self.input.specs[job.spec].request)

    def estimate_of(self, job: Job) -> DurationEstimate:
        """Return the distribution of one of them."""
        if job.id not in self.estimates:
            self.estimates[job.id] = self._estimate(job)
        return self.estimates[job.id]

    def _estimate(self, job: Job) -> DurationEstimate:
        spec, at = self.input.specs[job.spec], self.input.at
        rest = self.state.rest
        if job.state is JobState.COMPLETING and job.ending != "stop":
            return DurationEstimate(Kind.ORDER, "the end that was requested", ENDING)
        measured, age = self._measured_remaining(job), attained(job, at)
        if measured is not None:
            return DurationEstimate(Kind.EPOCHS, "its measured epochs", measured, MEASURED)
        most = max(spec.limit - age, 1.0) if spec.limit else inf
        left = remaining(rest.families, self.state.cluster, job, spec, at)
        counts = left is not None and self._has_epoch_estimate(job, spec)
        key = self._key(job)
        same = self.runs.get(key)
        if same is not None and not counts:
            basis = f"{_counted(len(same), 'earlier run')} of this command"
            scale = exp(SAME / len(same) ** 0.5 * self._common_sample(key)[0])
            return DurationEstimate(Kind.RUNS, basis, 0, SAME, same, scale, age, most)
        if left is not None and counts:
            return DurationEstimate(
                Kind.SIMILAR, f"measured epochs of earlier {job.name} runs", left, ALIKE
            )
        if left is not None:
            left = max(left, 0.1 * age)
            return DurationEstimate(
                Kind.STATED, "its stated duration", left, SAID, max_remaining=most
            )
        named = self.runs.get((key[0], None))
        if named is not None:
            basis = f"{_counted(len(named), 'run')} of {job.name} with other arguments"
            normal, chance = self._common_sample(key)
            scale, least = (
                exp(NAMED * normal) * self.common_factor,
                self.longest_running.get(key, 0.0),
            )
            return DurationEstimate(
                Kind.SIMILAR, basis, 0, SAME, named, scale, age, most, least, chance
            )
        return self._estimate_from_others(job, spec.limit, age, most)

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
        found = estimate(self.state.rest.families, self.state.cluster, job, spec, self.input.at)
        return found.epoch_seconds is not None

    def _estimate_from_others(
        self, job: Job, limit: int | None, age: float, most: float
    ) -> DurationEstimate:
        if limit and len(self.limit_use) >= USED:
            basis = (
                f"its time limit and the share that {len(self.limit_use)} other jobs used of theirs"
            )
            scale = limit * self.common_factor**0.5
            return DurationEstimate(
                Kind.SIMILAR, basis, 0, SMOOTH, self.limit_use, scale, age, most
            )
        if limit:
            half = max(limit / 2 - age, 0.2 * limit)
            return DurationEstimate(Kind.LIMIT, "its time limit", half, 0.5, max_remaining=most)
        alike = self.by_gpu_count.get(self._gpu_count(job))
        found = alike if alike is not None and len(alike) >= ENOUGH else self.all_durations
        kind, basis = Kind.SIMILAR, f"the durations of {len(found)} recent jobs"
        if len(found) < FEWEST_OTHERS:
            kind, basis = Kind.UNKNOWN, "no earlier run of its command and no time limit"
        if len(found):
            return DurationEstimate(
                kind, basis, 0, SMOOTH, found, scale=self.common_factor, age=age, max_remaining=most
            )
        middle, spread = NOTHING_KNOWN
        return DurationEstimate(kind, basis, max(middle, age), spread)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _share(life: Life, limit: int) -> Life:
    """The same, measured by its time limit."""
    return Life(min(life.age / limit, 1.0), life.ended, min(life.entry / limit, 0.99))


def ran(job: Job) -> float:
    """Seconds that a job ran that is over."""
    return sum(past.ended_at - past.started_at for past in job.past if past.started_at is not None)
