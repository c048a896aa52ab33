"""Members of arrays that a listing shows as one row: those pending alike, those failed alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

from stoker.core.job import Job
from stoker.core.lifecycle import UNHAPPY, JobState
from stoker.core.state import State

MOST_SPANS = 6
"""Longer lists of members are cut, as squeue does."""


def key_of(job: Job) -> Hashable:
    """Return what the members of one row have in common; of any other job its id."""
    if job.array is None or job.params is not None:
        return job.id
    if job.state is JobState.PENDING:
        return job.array, job.spec, job.priority, job.held, job.begin_at
    return (job.array, job.state) if job.state in UNHAPPY else job.id


def rows(jobs: Iterable[Job]) -> list[list[int]]:
    """Return ids by row, in the order of the first member of each."""
    found: dict[Hashable, list[int]] = {}
    for job in jobs:
        found.setdefault(key_of(job), []).append(job.id)
    return list(found.values())


def summary(ids: list[int], state: State) -> dict[str, Any]:
    """Return label, count and causes of the members of a row."""
    jobs = state.jobs
    first = jobs[ids[0]]
    pending = first.state is JobState.PENDING
    limit = state.spec(first).array_limit if pending else None
    members = spans(sorted(jobs[id].index or 0 for id in ids))
    causes = Counter(jobs[id].cause or "" for id in ids) if not pending else Counter[str]()
    return {
        "label": f"{first.array}_[{members}{f'%{limit}' if limit else ''}]",
        "count": len(ids),
        "causes": dict(causes.most_common()),
    }


def spans(numbers: list[int]) -> str:
    """Return rising numbers as `2-9,12`, cut with `...` where there are too many spans."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in found[:MOST_SPANS]]
    return ",".join([*texts, "..."] if len(found) > MOST_SPANS else texts)
