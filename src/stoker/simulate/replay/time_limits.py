"""Synthetic time limits for jobs without recorded ones."""

from __future__ import annotations

from math import ceil
from random import Random

from msgspec.structs import replace

from stoker.simulate.traces.files import count_jobs
from stoker.simulate.workload import Workload

MINUTE, HOUR, DAY = 60, 3600, 86400
TYPICAL_LIMITS = (
    10 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, 12 * HOUR,
    DAY, 2 * DAY, 4 * DAY, 7 * DAY, 14 * DAY, 30 * DAY,
)  # fmt: skip
"""Limits that users typically choose."""


def with_time_limits(workload: Workload, limits: str | None, seed: int) -> Workload:
    """Return a workload with other time limits, none shorter than the run time of its job."""
    if limits is None or limits == "recorded":
        return _with_recorded_limits(workload, missing=limits is not None)
    random = Random(seed)
    jobs = []
    for job in workload.jobs:
        limit: int | None = None
        if limits == "exact":
            limit = max(ceil(job.duration), 1)
        elif limits == "guessed":
            limit = round_up_limit(job.duration * (1 + random.lognormvariate(0.0, 1.0)))
        jobs.append(replace(job, time_limit=limit))
    return replace(workload, jobs=jobs)


def round_up_limit(seconds: float) -> int:
    """Return the next larger typical limit."""
    for limit in TYPICAL_LIMITS:
        if seconds <= limit:
            return limit
    return ceil(seconds / TYPICAL_LIMITS[-1]) * TYPICAL_LIMITS[-1]


def _with_recorded_limits(workload: Workload, missing: bool) -> Workload:
    """Keep recorded limits; raise those that a job exceeded, for example during its termination."""
    notes = list(workload.notes)
    beyond = sum(
        job.time_limit is not None and job.time_limit < job.duration for job in workload.jobs
    )
    if beyond:
        notes.append(
            f"{count_jobs(beyond)} ran beyond the time limit: the limit is raised to the run time."
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
        notes.append(f"{count_jobs(without)} without a time limit.")
    return replace(workload, notes=notes)
