"""How long jobs last, as far as that is known of each: what was measured, said, or seen of others.

Nobody knows. So each job has a distribution, from which every play of the future draws.
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
from stoker.core.outlook import Question, name_key
from stoker.core.policy.rank import gpus_of
from stoker.core.state import State

MEASURED, ALIKE, SAID, NAMED = 0.05, 0.25, 0.5, 0.15
"""By how much (a standard deviation, of the logarithm) it turns out otherwise than was measured of
this job, measured of its like, said by its owner, seen in earlier runs of its name."""
COMMON = 0.5
"""By how much, all together, those of whom nothing is known differ from those who were seen."""
SMOOTH = 0.2
"""The same for a job that lasts as long as some other one did."""
POWER, LONGEST = 2.0, 4.0
"""Of those who have outlasted all that was seen, a share of 1/x² lasts x times as long, and nobody
longer than this."""
ENOUGH = 30
"""So many others of the same size say more than all others do."""
USED = 10
"""So many others with a time limit say how much of it is used."""
NOTHING_KNOWN = (3600.0, 1.5)
"""When there is nothing at all to go by: the median, and the deviation of the logarithm."""


class Life(Struct, frozen=True):
    """How long one job lasted, as far as that was seen."""

    age: float
    """When it ended, or was looked at last."""
    ended: bool = True
    entry: float = 0.0
    """It was seen from this age on; had it ended before, nobody would know of it."""


class Lifetimes:
    """How long others lasted.

    Those who still run count as having lasted longer than that, and those who began before
    anybody looked count from there on (the estimate of Kaplan and Meier, with late entry): who
    lasts long is seen more often.
    """

    def __init__(self, lives: Iterable[Life]) -> None:
        known = sorted(lives, key=lambda life: (life.age, not life.ended))
        entries = sorted(life.entry for life in known)
        self.times: list[float] = []
        self.left: list[float] = []
        """The share that lasts longer than each of these times."""
        share = 1.0
        for place, life in enumerate(known):
            if life.ended:
                there = bisect_left(entries, life.age) - place
                share *= 1 - 1 / max(there, 1)
                self.times.append(life.age)
                self.left.append(share)

    def __len__(self) -> int:
        return len(self.times)

    def longer_than(self, age: float) -> float:
        """The share that lasts longer."""
        place = bisect_right(self.times, age)
        return self.left[place - 1] if place else 1.0

    def total(self, age: float, chance: float) -> float:
        """How long one lasts in all that has lasted so long: longer than this by that chance."""
        share = self.longer_than(age)
        aim = chance * share
        for place in range(bisect_right(self.times, age), len(self.times)):
            if self.left[place] <= aim:
                return self.times[place]
        # Beyond all that was seen, half of them last half as long again: a power law.
        begin = max(age, self.times[-1] if self.times else 0.0)
        end = self.longer_than(begin)
        times = end / aim if aim > 0 and end > 0 else 1 / max(chance, 1e-9)
        return begin * min(float(max(times, 1.0) ** (1 / POWER)), LONGEST)


class Guess(Struct, frozen=True):
    """What one job is believed to need from now on."""

    basis: str
    middle: float = 0.0
    """Seconds; 0: as the lifetimes say."""
    spread: float = 0.0
    lifetimes: Lifetimes | None = None
    scale: float = 1.0
    """What those are multiplied with."""
    age: float = 0.0
    most: float = inf

    def left(self, random: Random | None) -> float:
        """Seconds from now on: one of the possibilities, or without dice the one in the middle."""
        wobble = exp(self.spread * random.gauss(0.0, 1.0)) if random is not None else 1.0
        if self.lifetimes is None:
            return min(self.middle * wobble, self.most)
        chance = 1.0 - random.random() if random is not None else 0.5
        total = self.lifetimes.total(self.age / self.scale, chance) * self.scale
        # What is uncertain is what is left of it, not what is behind it.
        return min(max((total - self.age) * wobble, 1.0), self.most)


class Guesses:
    """What is believed about every job of a state, one after the other."""

    def __init__(self, asked: Question, state: State, random: Random | None = None) -> None:
        """With dice, those who were seen are drawn as well: others might have been seen."""
        self.asked, self.state = asked, state
        self.known: dict[int, Guess] = {}
        self.common = exp(COMMON * random.gauss(0.0, 1.0)) if random is not None else 1.0
        seen = [(job, life) for job in asked.jobs if (life := self._life(job)) is not None]
        if random is not None and seen:
            seen = random.choices(seen, k=len(seen))
        self.lab = Lifetimes(life for _, life in seen)
        sizes: dict[float, list[Life]] = {}
        for job, life in seen:
            sizes.setdefault(self._size(job), []).append(life)
        self.sizes = {size: Lifetimes(some) for size, some in sizes.items()}
        limits = [(life, asked.specs[job.spec].limit) for job, life in seen]
        self.used = Lifetimes(_share(life, limit) for life, limit in limits if limit)
        self.named = {name: Lifetimes(map(Life, runs)) for name, runs in asked.runs.items() if runs}

    def _life(self, job: Job) -> Life | None:
        """What was seen of one job; None if it has not run. Of whom has been measured, more."""
        at, since = self.asked.at, self.asked.since
        age = ran(job) if job.finished else attained(job, at)
        if age <= 0:
            return None
        last = job.ended_at if job.finished and job.ended_at is not None else at
        entry = max(age - max(last - since, 0.0), 0.0)
        left = None if job.finished else self._measured(job)
        # Of one that was cancelled it is only known that it took longer.
        ended = job.finished and job.state is not JobState.CANCELLED
        return Life(age, ended, entry) if left is None else Life(age + left, entry=entry)

    def _measured(self, job: Job) -> float | None:
        """Seconds that it needs from now on, if its own epochs say so."""
        spec = self.asked.specs[job.spec]
        epochs = epochs_of(job, spec)
        progress, families, at = job.progress, self.state.rest.families, self.asked.at
        if epochs is None or progress is None or progress.pace is None:
            return None
        left = remaining(families, self.state.cluster, job, spec, at) or 0.0
        if job.placement is not None and progress.counted_at is None and job.started_at is not None:
            # It goes on, and its first epoch since then is not over yet.
            run = at - job.started_at - job.slack - restart_cost(known(families, job, spec))
            left -= min(max(run, 0.0), max(left - progress.pace[2], 0.0))
        return left

    def _size(self, job: Job) -> float:
        return gpus_of(self.asked.specs[job.spec].request)

    def of(self, job: Job) -> Guess:
        """What is believed about one of them."""
        if job.id not in self.known:
            self.known[job.id] = self._guess(job)
        return self.known[job.id]

    def _guess(self, job: Job) -> Guess:
        spec, at = self.asked.specs[job.spec], self.asked.at
        rest = self.state.rest
        measured, age = self._measured(job), attained(job, at)
        if measured is not None:
            return Guess("its epochs so far", measured, MEASURED)
        left = remaining(rest.families, self.state.cluster, job, spec, at)
        if left is not None and self._counts_epochs(job, spec):
            return Guess("the epochs of its like", left, ALIKE)
        most = max(spec.limit - age, 1.0) if spec.limit else inf
        runs = self.named.get(name_key(job))
        if runs is not None:
            times = f"{len(runs)} earlier runs" if len(runs) > 1 else "an earlier run"
            return Guess(f"{times} of this name", 0, NAMED, runs, age=age, most=most)
        if left is not None:
            return Guess("what its owner said", max(left, 0.1 * age, 1.0), SAID, most=most)
        return self._from_others(job, spec.limit, age, most)

    def _counts_epochs(self, job: Job, spec: Spec) -> bool:
        if epochs_of(job, spec) is None:
            return False
        found = estimate(self.state.rest.families, self.state.cluster, job, spec, self.asked.at)
        return found.epoch_seconds is not None

    def _from_others(self, job: Job, limit: int | None, age: float, most: float) -> Guess:
        if limit and len(self.used) >= USED:
            words = f"its time limit, and how {len(self.used)} others used theirs"
            scale = limit * self.common
            return Guess(words, 0, SMOOTH, self.used, scale=scale, age=age, most=most)
        alike = self.sizes.get(self._size(job))
        found = alike if alike is not None and len(alike) >= ENOUGH else self.lab
        if len(found):
            others = "another job" if len(found) == 1 else f"{len(found)} recent jobs"
            words = f"a guess from {others}"
            return Guess(words, 0, SMOOTH, found, scale=self.common, age=age, most=most)
        if limit:
            return Guess("its time limit", max(limit / 2 - age, 0.2 * limit), 0.5, most=most)
        middle, spread = NOTHING_KNOWN
        return Guess("a guess, since nothing is known of such jobs", max(middle, age), spread)


def _share(life: Life, limit: int) -> Life:
    """The same, measured by its time limit."""
    return Life(min(life.age / limit, 1.0), life.ended, min(life.entry / limit, 0.99))


def ran(job: Job) -> float:
    """Seconds that a job ran that is over."""
    return sum(past.ended_at - past.started_at for past in job.past if past.started_at is not None)
