"""Who else may come: what was submitted lately is submitted again, from another moment on.

A forecast in which nobody else comes is too hopeful wherever newcomers may go first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import exp
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.estimate import attained
from stoker.core.job import Job, Spec
from stoker.core.lifecycle import JobState
from stoker.core.outlook import Question
from stoker.simulate.forecast.durations import DurationModel, ran

DAY = 86400.0
"""Whoever was watched for less than that is not taken to go on like this for ever."""
FEWEST = 5
"""From fewer submissions nothing is concluded."""
MOST = 5000
"""Newcomers in one play of the future."""


class Arrival(Struct):
    """A job that somebody may submit."""

    submit_time: float
    template: Job
    spec: Spec
    duration: float


class ArrivalModel:
    """What was submitted lately, to be drawn from."""

    def __init__(self, asked: Question, guesses: DurationModel) -> None:
        self.input, self.durations = asked, guesses
        self.window = max(asked.at - asked.since, 0.0)
        batches: dict[float, list[Job]] = {}
        for job in sorted(asked.jobs, key=lambda job: job.submitted_at):
            given_up = job.state is JobState.CANCELLED and not job.past
            if job.submitted_at >= asked.since and not given_up:
                batches.setdefault(job.submitted_at, []).append(job)
        self.batches = batches if len(batches) >= FEWEST else {}
        self.names = Counter(job.name for jobs in batches.values() for job in jobs)

    def sample(self, random: Random) -> list[Arrival]:
        """Those of one future, the first first."""
        found: list[Arrival] = []
        for at, jobs in self._arrival_times(random):
            found += [self._copy_of(job, at, random) for job in jobs]
            if len(found) >= MOST:
                break
        return found

    def _arrival_times(self, random: Random) -> Iterator[tuple[float, list[Job]]]:
        """The same pattern of days and nights, begun anywhere; each batch not once but as often
        as chance has it, so that the plays differ in how much there is to do.
        """
        begin, window = self.input.since, self.window
        shift = random.uniform(0.0, window)
        moments = (
            sorted(((at - begin - shift) % window, at) for at in self.batches) if window else []
        )
        rounds = 1 if window < DAY else max(int(30 * DAY / window), 1)
        for each in range(rounds):
            for after, at in moments:
                for _ in range(_times(random)):
                    yield self.input.at + each * window + after, self.batches[at]

    def _copy_of(self, job: Job, at: float, random: Random) -> Arrival:
        spec = self.input.specs[job.spec]
        name = spec.name if self.names[job.name] > 1 else f"{job.name} again"
        spec = replace(
            spec, name=name, dependency=None, array_limit=None, deadline_at=None, on_end=None
        )
        if job.finished:
            seconds = ran(job)
        else:
            seconds = attained(job, self.input.at) + self.durations.estimate_of(job).remaining(
                random
            )
        return Arrival(at, job, spec, max(seconds, 1.0))


def _times(random: Random) -> int:
    """How often something comes that comes once on average (Poisson)."""
    chance, times = random.random(), 0
    here = share = exp(-1.0)
    while chance > share and times < 10:
        times += 1
        here /= times
        share += here
    return times
