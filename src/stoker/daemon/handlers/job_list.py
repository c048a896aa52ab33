"""Long lists of jobs in pages: the order first, then filters and columns, some jobs at a time.

Everything here but `JobOrder.ids` and `merge_runs` runs in the daemon's thread, for a few
milliseconds each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from stoker.core.model.job import Job, JobState
from stoker.core.model.spec import Spec
from stoker.core.policies.ranking import OVERDUE_RANK
from stoker.core.queue.job_class import ClassEntry
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext, reply_only
from stoker.daemon.handlers.queries import counts
from stoker.daemon.rights import Access
from stoker.daemon.views.format import command_text
from stoker.daemon.views.job_columns import Coder, Expected, job_columns
from stoker.engine import CommandResult, Instant

JOBS_PER_TURN = 4000
"""Jobs that are read in one turn of the daemon: about 4 ms."""
MAX_LISTED = 200_000
SORTS = ("start", "submitted", "elapsed", "name")

Run = list[tuple[float, float, int, int]]
"""Ascending sort keys of pending jobs; the last number is the id."""


class ListFilter(Struct, frozen=True):
    """Which jobs a list has, and by what it is sorted."""

    states: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()
    sweep: int | None = None
    words: tuple[str, ...] = ()
    """Each must be part of label, name, user, command or `%label`."""
    fold: bool = False
    """Leave out the trials of open sweeps."""
    finished: bool = False
    """Also the finished jobs in memory."""
    sort: str = "start"

    @property
    def needs_pass(self) -> bool:
        """Whether every job must be looked at before the first one is known."""
        return self != ListFilter(finished=self.finished)

    def matches(self, job: Job, spec: Spec, state: State, context: RequestContext) -> bool:
        """Return True if a job belongs to the list."""
        if self.fold and job.params is not None and job.array in state.boards:
            sweep = state.sweeps.get(job.array or 0)
            if sweep is not None and sweep.is_open:
                return False
        return (
            (not self.states or job.state.value in self.states)
            and (not self.users or job.user in self.users)
            and (not self.queues or spec.queue in self.queues)
            and (not self.labels or self._has_label(spec, context))
            and (self.sweep is None or (job.params is not None and job.array == self.sweep))
            and (not self.words or self._has_words(job, spec, context))
        )

    def _has_label(self, spec: Spec, context: RequestContext) -> bool:
        is_visible = context.access(spec.uid) >= Access.DETAILS
        return is_visible and not self.labels.isdisjoint(spec.labels)

    def _has_words(self, job: Job, spec: Spec, context: RequestContext) -> bool:
        text = f"{job.label}\n{job.name}\n{job.user}"
        if context.access(spec.uid) >= Access.DETAILS:
            labels = " ".join(f"%{label}" for label in spec.labels)
            text += f"\n{labels}\n{command_text(job, spec)}"
        return all(word in text.lower() for word in self.words)

    def key(self, job: Job) -> Any:
        """Return by what a job is sorted."""
        if self.sort == "name":
            return job.name.lower(), job.id
        if self.sort == "elapsed":  # jobs that have not started come last
            return job.started_at is None, job.started_at or 0.0, job.id
        return job.submitted_at, job.id


class JobOrder(Struct):
    """A copy of the order of all jobs, which any thread may sort."""

    seq: int
    now: float
    counts: dict[str, int]
    running: list[int]
    classes: list[tuple[int, float, list[ClassEntry]]]
    """Of each class of pending jobs its priority, its penalty and its entries."""
    not_eligible: list[int]
    """Candidates for pending jobs outside the queue; most of them may be others."""
    failed: list[tuple[float, int]]
    finished: list[int] = field(default_factory=list)

    def pending_ids(self) -> list[int]:
        """Return the ids of eligible jobs in scheduling order."""
        return [key[3] for key in merge_runs([_run(*job_class) for job_class in self.classes])]

    def failed_ids(self) -> list[int]:
        """Return the ids of failures and, if asked for, of other finished jobs, newest first."""
        return [id for _, id in sorted(self.failed, reverse=True)] + self.finished[::-1]


def _run(priority: int, penalty: float, entries: list[ClassEntry]) -> Run:
    """Return the sort keys of one class, as `JobClass.sort_key` has them."""
    return [
        (-priority, rank + penalty if rank > OVERDUE_RANK else rank, order, id)
        for rank, order, id in entries
    ]


def merge_runs(runs: list[Run]) -> Run:
    """Return one ascending run, merging two at a time.

    A single sort of all keys would keep every other thread waiting: 60 ms for 100,000 jobs.
    """
    while len(runs) > 1:
        pairs = [(runs[at], runs[at + 1]) for at in range(0, len(runs) - 1, 2)]
        merged = [sorted(first + second) for first, second in pairs]
        runs = merged + runs[len(runs) - 1 :] if len(runs) % 2 else merged
    return runs[0] if runs else []


def list_order(finished: bool, seq: Callable[[], int], state: State, now: Instant) -> CommandResult:
    """Return the order of all jobs, without looking at each of them."""
    pending, jobs = state.pending, state.jobs
    has_others = state.live - len(state.running) > len(pending)
    others = state.finished.keys() - state.unacknowledged.keys() if finished else ()
    numbers = counts(state)
    for id in others:
        numbers[jobs[id].state.value] = numbers.get(jobs[id].state.value, 0) + 1
    return reply_only(
        JobOrder(
            seq=seq(),
            now=now.wall,
            counts=numbers,
            running=sorted(state.running),
            classes=[
                (each.priority, each.fair_share_penalty, each.entries[:])
                for each in pending.classes.values()
            ],
            not_eligible=list(jobs) if has_others else [],
            failed=[(jobs[id].ended_at or 0.0, id) for id in state.unacknowledged],
            finished=[id for id in state.finished if id in others],
        )
    )


def select_not_eligible(ids: Sequence[int], state: State, now: Instant) -> CommandResult:
    """Return those of these jobs that are pending but not eligible."""
    jobs = (state.jobs.get(id) for id in ids)
    return reply_only(
        [
            job.id
            for job in jobs
            if job is not None and job.state is JobState.PENDING and job.id not in state.pending
        ]
    )


def select_matching(
    context: RequestContext, chosen: ListFilter, ids: Sequence[int], state: State, now: Instant
) -> CommandResult:
    """Return sort key and id of those of these jobs that match, and their number by state."""
    rows = []
    numbers: Counter[str] = Counter()
    for job in map(state.jobs.get, ids):
        if job is not None and chosen.matches(job, state.spec(job), state, context):
            rows.append((chosen.key(job), job.id))
            numbers[job.state.value] += 1
    return reply_only((rows, numbers))


def list_columns(
    context: RequestContext, ids: Sequence[int], coders: Mapping[str, Coder], state: State,
    now: Instant,
) -> CommandResult:  # fmt: skip
    """Return the columns of those of these jobs that are still in memory."""
    jobs = [job for job in map(state.jobs.get, ids) if job is not None]
    expected = expected_times(context, state, now)
    hidden = {
        hash for hash in {job.spec for job in jobs}
        if context.access(state.specs[hash].uid) < Access.DETAILS
    }  # fmt: skip
    return reply_only(job_columns(jobs, state.specs, coders, expected, hidden))


def expected_times(context: RequestContext, state: State, now: Instant) -> Expected:
    """Return a function that returns the predicted start or end of a job, if there is one."""
    predicted = context.predicted_jobs()

    def expected(job: Job) -> int | None:
        if job.id not in predicted:
            return None
        estimate = context.forecast(job.id, state, now)
        interval = (estimate.end if job.holding else estimate.start) if estimate else None
        return int(interval.likely) if interval is not None and interval.likely else None

    return expected
