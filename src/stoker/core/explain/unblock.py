"""What would let a pending job start: ends of running jobs, starts of jobs ahead, time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest
from itertools import chain, islice
from math import inf
from operator import itemgetter
from typing import TypeVar

from stoker.core.cluster.overlay import Overlay
from stoker.core.explain import position
from stoker.core.explain.constraints import MAX_LISTED
from stoker.core.explain.forecast import Kind, TimeInterval
from stoker.core.explain.position import overdue_in
from stoker.core.measurement.foreign_use import UNAVAILABLE
from stoker.core.model.job import Job, JobState
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.model.units import approximate_duration
from stoker.core.placement.advance import blocking_reservations
from stoker.core.placement.compatibility import for_node, is_compatible
from stoker.core.placement.placer import find_placement
from stoker.core.policies.policy import BackfillMode
from stoker.core.preemption.preemptor import MAX_PREEMPTORS_PER_PASS
from stoker.core.queue.pending_queue import first_jobs
from stoker.core.state.limits import LimitHit
from stoker.core.state.state import State

T = TypeVar("T")
EndEstimate = Callable[[Job], TimeInterval | None]
"""The estimated end of a running job."""


def unblocks(
    state: State, job: Job, lacking: set[str], at: float, boot: float, ends: EndEstimate
) -> tuple[str, ...]:
    """Return what would let a pending job start, the soonest first of each kind."""
    job_class = state.pending.class_of.get(job.id)
    if job_class is None:
        return ()
    limit = state.quota_reason(job_class)
    hit = state.quotas.limit_hit(job_class)
    if hit is not None and hit.text == limit:
        return _limit_ends(state, job, hit, at, boot, ends)
    if limit is not None:
        return (f"a job that counts towards the limit must end: {limit}",)
    request = state.startable_request(job, job_class, at)
    if find_placement(state.cluster, request) is not None:
        return _reserved_text(state, job, at)
    useful = [
        other
        for other in state.running.values()
        if position.frees_needed(state, other.placement, request, lacking)
    ]
    holders = [other for other in useful if other.id not in state.stopping]
    stopping = [other for other in useful if other.id in state.stopping]
    what_if = _WhatIf(state, job, request, stopping)
    soonest, texts = 0.0, list[str]()
    if stopping:
        subject = "they were" if len(stopping) > 1 else "it was"
        texts = [f"{_jobs_do(stopping, 'stop')}, as {subject} asked to"]
    if not (stopping and what_if.would_start([])):
        soonest, ending = _ends(state, what_if, holders, at, boot, ends)
        quanta = _quanta(state, job, holders, at)
        texts = ending + quanta + texts + _foreign_use(state, what_if, request)
        ahead = [other for other in what_if.ahead if position.can_start(state, other, at)]
        if not texts and ahead:
            texts = [f"{_jobs_do(ahead, 'start')} first, ahead of it"]
        elif not texts and what_if.is_strict:
            texts += _reserved_text(state, job, at)
    if state.cluster.advance_reservations:
        texts += _reservations_end(state, job, at)
    overdue = overdue_in(state.ranking_input(job), at)
    if overdue < inf and overdue <= soonest:
        blocks = state.policy_of(state.spec(job).queue).backfill is BackfillMode.OVERDUE_ONLY
        effect = "no job may start ahead of it" if blocks else "it starts first"
        when = f"overdue in {approximate_duration(overdue)}, then" if overdue else "it is overdue:"
        texts.append(f"{when} {effect}")
    return tuple(texts)


def _limit_ends(
    state: State, job: Job, hit: LimitHit, at: float, boot: float, ends: EndEstimate
) -> tuple[str, ...]:
    """Return when a limit no longer keeps a job from starting."""
    request = state.class_request(job, state.pending.class_of[job.id])
    limits = next(limits for key, _, limits in state.limits.of(state.spec(job)) if key == hit.key)
    if hit.limit in ("max_time", "max_job_gpus"):
        option = "--time" if hit.limit == "max_time" else "--gpus"
        return (f"it asks for less: stoker edit {job.label} {option} ...",)
    if limits.gpu_hours is not None and hit.limit == "gpu_hours":
        free_at = state.limits.frees_at(hit.key, limits.gpu_hours, at)
        if free_at is None and hit.key in state.limits.running:
            return ("a job that counts towards the limit ends",)
        if free_at is None:
            return ("an administrator raises the limit: stoker limit",)
        when = approximate_duration(free_at - at)
        return (f"GPU-hours of a week ago no longer count in about {when}",)
    holders = list(state.limits.running.get(hit.key, {}).values())
    by_end = ((*_end(state, other, at, boot, ends), other) for other in holders)
    soonest = sorted(by_end, key=itemgetter(0))
    for count in range(1, len(soonest) + 1):
        first = [other for _, _, other in soonest[:count]]
        if state.limits.hit(state.spec(job), request, without=first) is None:
            seconds, how, last = soonest[count - 1]
            when = f" in {how} {approximate_duration(seconds)}"
            if seconds == inf:
                when = f": no estimate, because job {last.label} {how}"
            return (f"{_jobs_do(first, 'end')}{when}",)
    return ("an administrator raises the limit: stoker limit",)


def _reservations_end(state: State, job: Job, at: float) -> list[str]:
    """Return when the advance reservations that keep a job from starting end."""
    occupation = state.occupation(job, at)
    blocking = blocking_reservations(state.cluster, occupation, at)
    texts = [f"reservation {each.name} ends in {approximate_duration(each.end - at)}"
             for each in sorted(blocking, key=lambda each: each.end)]  # fmt: skip
    later = [each.begin for each in blocking if each.begin > at]
    if later and occupation.seconds == inf:
        left = approximate_duration(min(later) - at)
        texts.append(
            f"it gets a time limit of less than {left}: stoker edit {job.label} --time ..."
        )
    return texts[:MAX_LISTED]


class _WhatIf:
    """Whether a job fits after other jobs have ended and the jobs ahead of it were placed."""

    def __init__(
        self, state: State, job: Job, request: ResourceRequest, stopping: list[Job]
    ) -> None:
        self.state, self.request, self.stopping = state, request, stopping
        self.queue = state.spec(job).queue
        self.is_strict = state.backfill_mode(self.queue) is BackfillMode.STRICT
        first = first_jobs(state.pending, state.jobs, MAX_PREEMPTORS_PER_PASS)
        self.ahead = first[: first.index(job)] if job in first else first

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
            elif job_class.queue == self.queue and self.is_strict:
                return False
        return find_placement(ledger, self.request) is not None


def _jobs_do(jobs: Sequence[Job], verb: str) -> str:
    """Return `job 5 ends`, `jobs 5 and 6 end`."""
    labels = _listed([job.label for job in jobs])
    return f"jobs {labels} {verb}" if len(jobs) > 1 else f"job {labels} {verb}s"


def _reserved_text(state: State, job: Job, at: float) -> tuple[str, ...]:
    """Return which jobs start first, for a job that fits but is blocked by a reservation."""
    stops = (other.progress.stop for other in state.running.values())
    ids = {stop.preemptor for stop in stops if stop is not None and stop.preemptor is not None}
    first = [state.jobs[id] for id in sorted(ids & state.pending.class_of.keys())]
    if not first and (head := position.job_ahead(state, job, at)) is not None:
        first = [head]
    first = [other for other in first if other is not job]
    if not first:
        return ()
    why = "devices are reserved for it"
    if state.backfill_mode(state.spec(job).queue) is BackfillMode.STRICT:
        why = "this queue does not backfill"
    if not position.can_start(state, first[0], at):
        why += ", and no available node can run it"
    return (f"{_jobs_do(first, 'start')} first: {why}",)


def _ends(
    state: State, what_if: _WhatIf, holders: list[Job], at: float, boot: float, ends: EndEstimate
) -> tuple[float, list[str]]:
    """Return the seconds until the first ends that suffice, and such ends in words."""
    by_end = ((*_end(state, job, at, boot, ends), job) for job in holders)
    soonest = nsmallest(position.MAX_CONSIDERED, by_end, key=itemgetter(0))
    sets = _sufficient(soonest, lambda ended: what_if.would_start([job for _, _, job in ended]))
    lasts = [max(needed, key=itemgetter(0)) for needed in sets]
    first, texts = min((seconds for seconds, _, _ in lasts), default=inf), []
    for needed, (seconds, how, last) in zip(sets, lasts, strict=True):
        text = _jobs_do([job for _, _, job in needed], "end")
        if seconds == inf and first == inf:
            texts.append(f"{text}: no estimate, because job {last.label} {how}")
        elif seconds < inf:
            texts.append(f"{text} in {how} {approximate_duration(seconds)}" if seconds else text)
    return first, texts


def _sufficient(items: Sequence[T], suffices: Callable[[Sequence[T]], bool]) -> list[Sequence[T]]:
    """Return the first items that suffice alone; else one set of items that are all needed."""
    single = list(islice(([item] for item in items if suffices([item])), MAX_LISTED))
    if single:
        return [*single]
    sets = (items[: count + 1] for count in range(len(items)))
    needed = next((first for first in sets if suffices(first)), [])
    for item in needed[:-1]:
        fewer = [other for other in needed if other is not item]
        needed = fewer if suffices(fewer) else needed
    return [needed] if needed else []


def _listed(labels: Sequence[str]) -> str:
    """Return labels as a list in a sentence; a long one ends in a number."""
    if len(labels) > MAX_LISTED + 1:
        labels = [*labels[:MAX_LISTED], f"{len(labels) - MAX_LISTED} others"]
    *first, last = labels
    return f"{', '.join(first)} and {last}" if first else last


def _end(state: State, job: Job, at: float, boot: float, ends: EndEstimate) -> tuple[float, str]:
    """Return the seconds until a job ends, and "about" or "at most"; if they are infinite, why."""
    if job.state is JobState.SUSPENDED:
        return inf, f"is paused (stoker resume {job.label})"
    if job.started_boot is None:
        return inf, "is starting"
    end = ends(job)
    if end is not None and end.likely is not None:
        return max(end.likely - at, 0.0), "at most" if end.kind is Kind.LIMIT else "about"
    limit = state.spec(job).limit
    if limit is None:
        return inf, "has no time limit"
    return max(limit - (boot - job.started_boot - job.slack), 0.0), "at most"


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
    several, texts = len(state.cluster.nodes) > 1, []
    for users in sets:
        gpus_of_users = [gpu for user in users for gpu in used[user]]
        names = _listed([f"{node}/{gpu}" if several else gpu for node, gpu in gpus_of_users])
        user, is_one = _listed(users), len(gpus_of_users) == 1
        why = user if user.startswith(UNAVAILABLE) else f"used by {user}"
        texts.append(f"GPU{'s' * (not is_one)} {names} become{'s' * is_one} free, now {why}")
    return texts


def _quanta(state: State, job: Job, holders: list[Job], at: float) -> list[str]:
    """Return the jobs that may be preempted after their quantum."""
    victims = (other for other in holders if other.id in state.victims)
    waits = [
        (wait, other.id, other.label)
        for other in islice(victims, position.MAX_CONSIDERED)
        if (wait := position.seconds_until_preemption(state, job, other, at))
    ]
    return [
        f"job {label} can be preempted in {approximate_duration(wait)}, after its quantum"
        for wait, _, label in nsmallest(MAX_LISTED, waits)
    ]
