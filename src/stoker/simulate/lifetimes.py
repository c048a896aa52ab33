"""How long jobs last, as far as that is known of each: what was measured, said, or seen of others.

Nobody knows. So each job has a distribution, from which every play of the future draws.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from math import exp, inf
from random import Random

from msgspec import Struct

from stoker.core.estimate import attained, estimate, remaining
from stoker.core.job import Job, Spec
from stoker.core.outlook import Question, name_key
from stoker.core.policy.rank import gpus_of
from stoker.core.state import State

MEASURED, ALIKE, SAID, NAMED = 0.05, 0.25, 0.5, 0.15
"""By how much (a standard deviation, of the logarithm) it turns out otherwise than was measured of
this job, measured of its like, said by its owner, seen in earlier runs of its name."""
SMOOTH = 0.2
"""The same for a job that lasts as long as some other one did."""
LONGEST = 20.0
"""Whoever has outlasted all that was seen lasts at most so many times as long again."""
ENOUGH = 30
"""So many others of the same size say more than all others do."""
USED = 10
"""So many others with a time limit say how much of it is used."""
NOTHING_KNOWN = (3600.0, 1.5)
"""When there is nothing at all to go by: the median, and the deviation of the logarithm."""


class Lifetimes:
    """How long others lasted; those who still run count as having lasted longer than that."""

    def __init__(self, ended: Iterable[float], going: Iterable[float] = ()) -> None:
        marks = sorted([(each, 0) for each in ended] + [(each, 1) for each in going])
        self.times: list[float] = []
        self.left: list[float] = []
        """The share that lasts longer than each of these times (Kaplan and Meier's estimate)."""
        share = 1.0
        for place, (time, goes_on) in enumerate(marks):
            if not goes_on:
                share *= 1 - 1 / (len(marks) - place)
                self.times.append(time)
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
        # Beyond all that was seen, it lasts as long again as often as not.
        begin = max(age, self.times[-1] if self.times else 0.0)
        end = self.longer_than(begin)
        times = end / aim if aim > 0 and end > 0 else 1 / max(chance, 1e-9)
        return begin * min(max(times, 1.0), LONGEST)


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

    def __init__(self, asked: Question, state: State) -> None:
        self.asked, self.state, at = asked, state, asked.at
        self.known: dict[int, Guess] = {}
        begun = [job for job in asked.jobs if job.finished or job.placement or job.progress]
        ages = [(job, ran(job) if job.finished else attained(job, at)) for job in begun]
        ages = [(job, age) for job, age in ages if age > 0]
        self.lab = _lifetimes(ages)
        sizes: dict[float, list[tuple[Job, float]]] = {}
        for job, age in ages:
            sizes.setdefault(self._size(job), []).append((job, age))
        self.sizes = {size: _lifetimes(some) for size, some in sizes.items()}
        limits = [(job, age, asked.specs[job.spec].limit) for job, age in ages]
        self.used = _lifetimes(
            [(job, min(age / limit, 1.0)) for job, age, limit in limits if limit]
        )
        self.named = {name: Lifetimes(runs) for name, runs in asked.runs.items() if runs}

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
        known = remaining(rest.families, self.state.cluster, job, spec, at)
        age = attained(job, at)
        if known is not None and spec.training is not None and spec.training.epochs is not None:
            if job.progress is not None and job.progress.pace is not None:
                return Guess("its epochs so far", known, MEASURED)
            if self._counts_epochs(job, spec):
                return Guess("the epochs of its like", known, ALIKE)
        most = max(spec.limit - age, 1.0) if spec.limit else inf
        runs = self.named.get(name_key(job))
        if runs is not None:
            times = f"{len(runs)} earlier runs" if len(runs) > 1 else "an earlier run"
            return Guess(f"{times} of this name", 0, NAMED, runs, age=age, most=most)
        if known is not None:
            return Guess("what its owner said", max(known, 0.1 * age, 1.0), SAID, most=most)
        return self._from_others(job, spec.limit, age, most)

    def _counts_epochs(self, job: Job, spec: Spec) -> bool:
        found = estimate(self.state.rest.families, self.state.cluster, job, spec, self.asked.at)
        return found.epoch_seconds is not None

    def _from_others(self, job: Job, limit: int | None, age: float, most: float) -> Guess:
        if limit and len(self.used) >= USED:
            words = f"its time limit, and how {len(self.used)} others used theirs"
            return Guess(words, 0, SMOOTH, self.used, scale=limit, age=age, most=most)
        alike = self.sizes.get(self._size(job))
        found = alike if alike is not None and len(alike) >= ENOUGH else self.lab
        if len(found):
            others = "another job" if len(found) == 1 else f"{len(found)} recent jobs"
            return Guess(f"a guess from {others}", 0, SMOOTH, found, age=age, most=most)
        if limit:
            return Guess("its time limit", max(limit / 2 - age, 0.2 * limit), 0.5, most=most)
        middle, spread = NOTHING_KNOWN
        return Guess("a guess: nothing is known", max(middle, age), spread)


def _lifetimes(ages: list[tuple[Job, float]]) -> Lifetimes:
    return Lifetimes(
        (age for job, age in ages if job.finished), (age for job, age in ages if not job.finished)
    )


def ran(job: Job) -> float:
    """Seconds that a job ran that is over."""
    return sum(past.ended_at - past.started_at for past in job.past if past.started_at is not None)
