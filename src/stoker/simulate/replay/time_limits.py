"""Time limits such as people type, for jobs of which nobody has recorded any."""

from __future__ import annotations

from math import ceil
from random import Random

from msgspec.structs import replace

from stoker.simulate.traces.files import many
from stoker.simulate.workload import Workload

MINUTE, HOUR, DAY = 60, 3600, 86400
TYPED = (
    10 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, 12 * HOUR,
    DAY, 2 * DAY, 4 * DAY, 7 * DAY, 14 * DAY, 30 * DAY,
)  # fmt: skip
"""What people choose from; above, it is months."""


def limited(workload: Workload, limits: str | None, seed: int) -> Workload:
    """The same jobs with other limits; never one that would end a job before its time."""
    if limits is None or limits == "recorded":
        return _kept(workload, missing=limits is not None)
    chance = Random(seed)
    jobs = []
    for job in workload.jobs:
        limit: int | None = None
        if limits == "exact":
            limit = max(ceil(job.duration), 1)
        elif limits == "guessed":
            limit = as_typed(job.duration * (1 + chance.lognormvariate(0.0, 1.0)))
        jobs.append(replace(job, time_limit=limit))
    return replace(workload, jobs=jobs)


def as_typed(seconds: float) -> int:
    """The next larger limit that people write."""
    for limit in TYPED:
        if seconds <= limit:
            return limit
    return ceil(seconds / TYPED[-1]) * TYPED[-1]


def _kept(workload: Workload, missing: bool) -> Workload:
    """As recorded: a job that ran beyond its limit, as some do while they are ended, may."""
    notes = list(workload.notes)
    beyond = sum(
        job.time_limit is not None and job.time_limit < job.duration for job in workload.jobs
    )
    if beyond:
        notes.append(
            f"{many(beyond)} ran beyond the time limit: the limit is raised to the run time."
        )
        jobs = [
            replace(job, time_limit=ceil(job.duration))
            if job.time_limit is not None and job.time_limit < job.duration
            else job
            for job in workload.jobs
        ]
        workload = replace(workload, jobs=jobs)
    without = sum(job.time_limit is None for job in workload.jobs)
    if missing and without:
        notes.append(f"{many(without)} without a time limit.")
    return replace(workload, notes=notes)
