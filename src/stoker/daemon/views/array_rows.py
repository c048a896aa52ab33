"""Members of arrays that a listing shows as one row: pending alike, or failed alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable

from stoker.core.model.job import FAILED_STATES, Job, JobState
from stoker.core.state.state import State
from stoker.schema.job import MembersView

MAX_SPANS = 6
"""Longer lists of members are cut, as squeue does."""


def row_key(job: Job) -> Hashable:
    """Return what the members of one row have in common; for any other job its id."""
    if job.array is None or job.params is not None:
        return job.id
    if job.state is JobState.PENDING:
        return job.array, job.spec, job.priority, job.held, job.begin_at
    return (job.array, job.state) if job.state in FAILED_STATES else job.id


def rows(jobs: Iterable[Job]) -> list[list[int]]:
    """Return ids by row, in the order of the first member of each."""
    ids: dict[Hashable, list[int]] = {}
    for job in jobs:
        ids.setdefault(row_key(job), []).append(job.id)
    return list(ids.values())


def summary(ids: list[int], state: State, has_causes: bool = True) -> MembersView:
    """Return label, number and, if it has them, causes of the members of a row."""
    jobs = state.jobs
    first = jobs[ids[0]]
    is_pending = first.state is JobState.PENDING
    limit = state.spec(first).array_limit if is_pending else None
    members = spans(sorted(jobs[id].index or 0 for id in ids))
    with_causes = ids if has_causes and not is_pending else ()
    causes = Counter(jobs[id].cause or "" for id in with_causes)
    return MembersView(
        label=f"{first.array}_[{members}{f'%{limit}' if limit else ''}]",
        count=len(ids),
        causes=dict(causes.most_common()),
    )


def spans(numbers: list[int]) -> str:
    """Return ascending numbers as `2-9,12`, cut with `...` after MAX_SPANS spans."""
    pairs: list[list[int]] = []
    for number in numbers:
        if pairs and number == pairs[-1][1] + 1:
            pairs[-1][1] = number
        else:
            pairs.append([number, number])
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in pairs[:MAX_SPANS]]
    return ",".join([*texts, "..."] if len(pairs) > MAX_SPANS else texts)
