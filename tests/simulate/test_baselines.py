"""Policies without preemption, against a second scheduler that is too simple to be wrong.

One machine with whole GPUs, or anything that comes to the same: all that counts is how many are
free. Every job differs from all others, so that the core's shortcuts for many kinds of jobs are
what is tested.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest
from msgspec.structs import replace

from stoker.core.running.release_times import KILL_GRACE_SECONDS
from stoker.simulate.replay.replay import replay
from stoker.simulate.traces.cluster_size import parse_cluster
from stoker.simulate.workload import TraceJob, Workload

GPUS = 8


@dataclass
class Held:
    """One that runs."""

    gpus: float
    over: float
    latest: float
    """Its end if it uses all its time."""


Choose = Callable[[list[TraceJob], float, list[Held], float], list[TraceJob]]
"""Who starts now, of those who wait in order, given how many GPUs are free and who runs."""


def fifo(waiting: list[TraceJob], free: float, running: list[Held], now: float) -> list[TraceJob]:
    found = []
    for job in waiting:
        if job.gpus > free:
            break
        found.append(job)
        free -= job.gpus
    return found


def skip(waiting: list[TraceJob], free: float, running: list[Held], now: float) -> list[TraceJob]:
    found = []
    for job in waiting:
        if job.gpus <= free:
            found.append(job)
            free -= job.gpus
    return found


def easy(waiting: list[TraceJob], free: float, running: list[Held], now: float) -> list[TraceJob]:
    found = fifo(waiting, free, running, now)
    if len(found) == len(waiting):
        return found
    free -= sum(job.gpus for job in found)
    head, behind = waiting[len(found)], waiting[len(found) + 1 :]
    ends = [(held.latest, held.gpus) for held in running]
    ends += [(_latest(job, now), job.gpus) for job in found]
    start, spare = now, free
    for end, gpus in sorted(ends):
        start, spare = end, spare + gpus
        if spare >= head.gpus:
            break
    # Who ends at the same moment counts as well, or does not: only the GPUs of those before do.
    spare -= head.gpus
    for job in behind:
        in_time = _latest(job, now) <= start
        if job.gpus <= free and (in_time or job.gpus <= spare):
            found.append(job)
            free -= job.gpus
            spare -= 0 if in_time else job.gpus
    return found


def shortest(
    waiting: list[TraceJob], free: float, running: list[Held], now: float
) -> list[TraceJob]:
    return easy(sorted(waiting, key=lambda job: job.duration), free, running, now)


def conservative(
    waiting: list[TraceJob], free: float, running: list[Held], now: float
) -> list[TraceJob]:
    """Everybody has a place in the calendar, the first that there is; who has it now starts."""
    taken = [(now, held.latest, held.gpus) for held in running]
    found = []
    for job in waiting:
        span = _latest(job, now) - now
        for start in sorted({now} | {end for _, end, _ in taken}):
            if _most(taken, start, start + span) + job.gpus <= GPUS:
                break
        taken.append((start, start + span, job.gpus))
        if start == now:
            found.append(job)
    return found


def _most(taken: list[tuple[float, float, float]], start: float, end: float) -> float:
    moments = {start} | {begin for begin, _, _ in taken if start < begin < end}
    return max(
        sum(gpus for begin, over, gpus in taken if begin <= moment < over) for moment in moments
    )


def _latest(job: TraceJob, now: float) -> float:
    assert job.time_limit is not None
    return now + job.time_limit + KILL_GRACE_SECONDS


def worked_out(jobs: list[TraceJob], choose: Choose) -> list[float]:
    """When each of them begins."""
    begins: dict[int, float] = {}
    waiting: list[TraceJob] = []
    running: list[Held] = []
    coming = list(jobs)
    while coming or waiting or running:
        now = min([job.submit_time for job in coming[:1]] + [held.over for held in running])
        running = [held for held in running if held.over > now]
        while coming and coming[0].submit_time <= now:
            waiting.append(coming.pop(0))
        free = GPUS - sum(held.gpus for held in running)
        for job in choose(waiting, free, running, now):
            begins[id(job)] = now
            running.append(Held(job.gpus, now + job.duration, _latest(job, now)))
            waiting = [each for each in waiting if each is not job]
    return [begins[id(job)] for job in jobs]


def all_different(seed: int, count: int) -> list[TraceJob]:
    chance = Random(seed)
    limits = chance.sample(range(60, 60 + 20 * count), count)
    sizes = [chance.choice((1, 1, 1, 2, 3, 4, 8)) for _ in range(count)]
    at, jobs = 0.0, []
    for limit, gpus in zip(limits, sizes, strict=True):
        at += chance.expovariate(1.0) * 0.9 * 10 * count * 2.5 / GPUS
        seconds = limit * chance.uniform(0.2, 1.0)
        jobs.append(TraceJob(submit_time=at, duration=seconds, gpus=gpus, time_limit=limit))
    return jobs


BASELINES: list[tuple[str, Choose]] = [
    ("fifo", fifo), ("skip", skip), ("backfill", easy), ("sjf", shortest),
    ("conservative", conservative),
]  # fmt: skip


KINDS: dict[str, tuple[str, Callable[[TraceJob], TraceJob]]] = {
    "GPUs": (f"1x{GPUS}", lambda job: job),
    "machines": (f"{GPUS}x1", lambda job: job),
    "large machines": (f"{GPUS}x8", lambda job: replace(job, gpus=job.gpus * 8)),
    "cores": (f"1x1,cpus={GPUS}", lambda job: replace(job, gpus=0, cpus=job.gpus)),
    "a GPU": ("1x1", lambda job: replace(job, gpus=job.gpus / GPUS)),
}
"""What there are eight of."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("name", "choose"), BASELINES, ids=[name for name, _ in BASELINES])
def test_each_job_starts_at_the_time_computed_by_hand(
    name: str, choose: Choose, seed: int, kind: str
) -> None:
    jobs = all_different(seed, 90)
    cluster, alike = KINDS[kind]
    same = [alike(job) for job in jobs]
    run = replay(Workload(title="", jobs=same), parse_cluster(cluster), name)
    begins = {each.job: each.start_time for each in run.results}
    expected = worked_out(jobs, choose)
    assert [begins[place] for place in range(len(jobs))] == pytest.approx(expected)
    waited = [begin - job.submit_time for begin, job in zip(expected, jobs, strict=True)]
    assert sum(wait > 60 for wait in waited) > 20, "there is a line to speak of"
