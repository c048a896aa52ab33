"""What would let a pending job start: ends of running jobs, starts of jobs ahead, time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest
from itertools import chain, islice
from math import inf
from typing import NamedTuple, TypeVar

from stoker.core.cluster.overlay import Overlay
from stoker.core.explain.forecast import Kind, TimeInterval
from stoker.core.explain.position import (
    MAX_JOBS_AHEAD,
    MAX_SHOWN,
    frees_needed,
    outranks,
    quantum_left,
)
from stoker.core.explain.ranking_text import overdue_in
from stoker.core.measurement.foreign_use import UNAVAILABLE
from stoker.core.model.job import Job
from stoker.core.model.lifecycle import JobState
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.model.units import approximate_duration
from stoker.core.placement.compatibility import for_node, is_compatible
from stoker.core.placement.placer import find_placement
from stoker.core.policies.policy import BackfillMode
from stoker.core.queue.pending_queue import first_jobs
from stoker.core.state.state import State

T = TypeVar("T")
EndEstimate = Callable[[Job], TimeInterval | None]
"""The estimated end of a running job."""
MAX_LABELS_PER_SENTENCE = 6
"""Labels in one sentence; longer lists end in a number."""
MAX_RUNNING_CONSIDERED = 64
"""Running jobs tried, the first to end first: each costs a placement search."""


def unblocks(
    state: State, job: Job, lacking: set[str], at: float, boot: float, ends: EndEstimate
) -> tuple[str, ...]:
    """Return what would let a pending job start, the soonest first of each kind."""
    job_class = state.pending.class_of.get(job.id)
    if job_class is None:
        return ()
    limit = state.quota_reason(job_class)
    if limit is not None:
        return (f"a job that counts towards the limit must end: {limit}",)
    request = state.class_request(job, job_class)
    if find_placement(state.cluster, request) is not None:
        return _reserved_text(state, job)
    useful = [
        other
        for other in state.running.values()
        if frees_needed(state, other.placement, request, lacking)
    ]
    holders = [other for other in useful if other.id not in state.stopping]
    stopping = [other for other in useful if other.id in state.stopping]
    what_if = _WhatIf(state, job, request, stopping)
    soonest, texts = 0.0, _stopping_text(stopping)
    if not (stopping and what_if.would_start([])):
        soonest, ending = _ends(state, what_if, holders, at, boot, ends)
        quanta = _quanta(state, job, holders, at)
        texts = ending + quanta + texts + _foreign_use(state, what_if, request)
        texts = texts or _jobs_ahead_text(what_if.ahead)
    overdue = overdue_in(state.ranking_input(job), at)
    return (*texts, *_overdue(state, job, overdue)) if overdue <= soonest else tuple(texts)


class _WhatIf:
    """Whether a job fits after other jobs have ended and the jobs ahead of it were placed."""

    def __init__(
        self, state: State, job: Job, request: ResourceRequest, stopping: list[Job]
    ) -> None:
        self.state, self.request, self.stopping = state, request, stopping
        self.queue = state.spec(job).queue
        self.ahead: list[Job] = []
        for other in first_jobs(state.pending, state.jobs, MAX_JOBS_AHEAD):
            if other is job:
                break
            self.ahead.append(other)

    def would_start(self, ended: list[Job], vacated: Iterable[tuple[str, str]] = ()) -> bool:
        """Whether the job starts after these jobs have ended and foreign users left these GPUs."""
        ledger, state = Overlay(self.state.cluster), self.state
        for node, gpu in vacated:
            device = ledger.writable(node).by_name[GPU, gpu]
            device.foreign_user, device.foreign_memory = None, 0
        for job in (*self.stopping, *ended):
            if job.placement is not None:
                ledger.release(job.placement)
        for job in self.ahead:
            job_class = state.pending.class_of[job.id]
            if state.quota_reason(job_class):
                continue
            placement = find_placement(ledger, state.class_request(job, job_class))
            if placement is not None:
                ledger.allocate(placement)
            elif (
                job_class.queue == self.queue
                and state.backfill_mode(job_class.queue) is BackfillMode.STRICT
            ):
                return False
        return find_placement(ledger, self.request) is not None


def _jobs_do(jobs: Sequence[Job], verb: str) -> str:
    """Return `job 5 ends`, `jobs 5 and 6 end`."""
    labels = _listed([job.label for job in jobs])
    return f"jobs {labels} {verb}" if len(jobs) > 1 else f"job {labels} {verb}s"


def _jobs_ahead_text(ahead: list[Job]) -> list[str]:
    """Return the text for a job that needs starts and ends of the jobs ahead of it."""
    return [f"{_jobs_do(ahead, 'start')} first, ahead of it"] if ahead else []


def _stopping_text(stopping: list[Job]) -> list[str]:
    subject = "they were" if len(stopping) > 1 else "it was"
    return [f"{_jobs_do(stopping, 'stop')}, as {subject} asked to"] if stopping else []


def _reserved_text(state: State, job: Job) -> tuple[str, ...]:
    """Return which jobs start first, for a job that fits but is blocked by a reservation."""
    stops = (other.progress.stop for other in state.running.values() if other.progress is not None)
    ids = {stop.preemptor for stop in stops if stop is not None and stop.preemptor is not None}
    preemptors = [state.jobs[id] for id in sorted(ids & state.pending.class_of.keys())]
    if not preemptors:
        head = state.pending.head(state.jobs, state.quota_reason)
        preemptors = [head] if head is not None else []
    first = [other for other in preemptors if other is not job]
    if not first:
        return ()
    why = "devices are reserved for it"
    if state.backfill_mode(state.spec(job).queue) is BackfillMode.STRICT:
        why = "this queue does not backfill"
    return (f"{_jobs_do(first, 'start')} first: {why}",)


class _End(NamedTuple):
    """When a running job ends."""

    seconds: float
    """Infinite: it is not known."""
    text: str
    """"about" or "at most"; if it is not known, why."""
    job: Job


def _ends(
    state: State, what_if: _WhatIf, holders: list[Job], at: float, boot: float, ends: EndEstimate
) -> tuple[float, list[str]]:
    """Return the seconds until the first ends that suffice, and such ends in words."""
    by_end = (_end(state, job, at, boot, ends) for job in holders)
    soonest = nsmallest(MAX_RUNNING_CONSIDERED, by_end, key=lambda end: end.seconds)
    sets = _sufficient(soonest, lambda ended: what_if.would_start([end.job for end in ended]))
    last = [max(needed, key=lambda end: end.seconds) for needed in sets]
    known = any(end.seconds < inf for end in last)
    texts = [
        _end_text(needed, end)
        for needed, end in zip(sets, last, strict=True)
        if end.seconds < inf or not known
    ]
    return min((end.seconds for end in last), default=inf), texts


def _end_text(needed: Sequence[_End], last: _End) -> str:
    text = _jobs_do([end.job for end in needed], "end")
    if last.seconds == inf:
        return f"{text}: no estimate, because job {last.job.label} {last.text}"
    return f"{text} in {last.text} {approximate_duration(last.seconds)}" if last.seconds else text


def _sufficient(items: Sequence[T], suffices: Callable[[Sequence[T]], bool]) -> list[Sequence[T]]:
    """Return the first items that suffice alone; else one set of items that are all needed."""
    single = list(islice(([item] for item in items if suffices([item])), MAX_SHOWN))
    if single:
        return [*single]
    needed: list[T] = []
    for item in items:
        needed.append(item)
        if suffices(needed):
            break
    else:
        return []
    for item in needed[:-1]:
        fewer = [other for other in needed if other is not item]
        needed = fewer if suffices(fewer) else needed
    return [needed]


def _listed(labels: Sequence[str]) -> str:
    """Return labels as a list in a sentence."""
    if len(labels) > MAX_LABELS_PER_SENTENCE:
        labels = [
            *labels[: MAX_LABELS_PER_SENTENCE - 1],
            f"{len(labels) - MAX_LABELS_PER_SENTENCE + 1} others",
        ]
    *first, last = labels
    return f"{', '.join(first)} and {last}" if first else last


def _end(state: State, job: Job, at: float, boot: float, ends: EndEstimate) -> _End:
    if job.state is JobState.SUSPENDED:
        return _End(inf, f"is paused (stoker resume {job.label})", job)
    if job.started_boot is None:
        return _End(inf, "is starting", job)
    end = ends(job)
    if end is not None and end.likely is not None:
        how = "at most" if end.kind is Kind.LIMIT else "about"
        return _End(max(end.likely - at, 0.0), how, job)
    limit = state.spec(job).limit
    if limit is None:
        return _End(inf, "has no time limit", job)
    return _End(max(limit - (boot - job.started_boot - job.slack), 0.0), "at most", job)


def _foreign_use(state: State, what_if: _WhatIf, request: ResourceRequest) -> list[str]:
    """Return the GPUs that would suffice if foreign users left: one user, else several."""
    gpus = request.gpus
    if gpus is None or not gpus.amount or gpus.ignore_foreign_use:
        return []
    used: dict[str, list[tuple[str, str]]] = {}
    for node in state.cluster.nodes.values():
        for device in node.types.get(GPU, ()) if node.unavailable_reason is None else ():
            if device.foreign_user is not None and is_compatible(device, for_node(gpus, node.name)):
                used.setdefault(device.foreign_user, []).append((node.name, device.name))
    sets = _sufficient(
        list(used), lambda users: what_if.would_start([], chain(*(used[user] for user in users)))
    )
    several = len(state.cluster.nodes) > 1
    return [
        _becomes_free(_listed(users), [gpu for user in users for gpu in used[user]], several)
        for users in sets
    ]


def _becomes_free(user: str, gpus: list[tuple[str, str]], several: bool) -> str:
    names = _listed([f"{node}/{gpu}" if several else gpu for node, gpu in gpus])
    why = user if user.startswith(UNAVAILABLE) else f"used by {user}"
    return f"GPU{'s' * (len(gpus) > 1)} {names} become{'s' * (len(gpus) == 1)} free, now {why}"


def _quanta(state: State, job: Job, holders: list[Job], at: float) -> list[str]:
    """Return the jobs that may be preempted after their quantum."""
    victims = (other for other in holders if other.id in state.victims)
    waits = [
        (quantum_left(state, other, at), other.id, other.label)
        for other in islice(victims, MAX_RUNNING_CONSIDERED)
        if other.priority == job.priority and outranks(state, job, other, at)
    ]
    return [
        f"job {label} can be preempted in {approximate_duration(wait)}, after its quantum"
        for wait, _, label in nsmallest(MAX_SHOWN, (each for each in waits if each[0] > 0))
    ]


def _overdue(state: State, job: Job, overdue: float) -> list[str]:
    policy = state.policy_of(state.spec(job).queue)
    if overdue == inf:
        return []
    effect = (
        "no job may start ahead of it"
        if policy.backfill is BackfillMode.OVERDUE_ONLY
        else "it starts first"
    )
    if not overdue:
        return [f"it is overdue: {effect}"]
    return [f"overdue in {approximate_duration(overdue)}, then {effect}"]
