"""Eligibility: whether a pending job may be scheduled, and what can change that.

A job is eligible if it is not held, its begin time has passed and its dependency is met.
"""

from __future__ import annotations

from functools import partial
from math import inf

from msgspec.structs import replace

from stoker.core.model.dependency import Dependency, DependencyStatus, DependencyTarget
from stoker.core.model.job import Job, JobState
from stoker.core.policies.ranking import rank
from stoker.core.state.node_updates import move_queue_devices
from stoker.core.state.reranking import charge_start, first_victim, may_preempt, update_preemptible
from stoker.core.state.state import State

_AFTER_END = {"afterok", "afterany"}
"""Kinds of dependencies that an unfinished job keeps open."""


def update_eligibility(state: State, job: Job, now: float) -> None:
    """Update the eligibility of a pending job and of the jobs that depend on it."""
    todo = [job.id]
    while todo:
        id = todo.pop()
        was_never_eligible = id in state.never_eligible
        if _enqueue_if_eligible(state, state.jobs[id], now):
            state.pending.request_planning()
        # A job that depends on one that can never start can never start either.
        if was_never_eligible != (id in state.never_eligible):
            todo += state.dependents.get(id, ())


def _enqueue_if_eligible(state: State, job: Job, now: float) -> bool:
    """Add a job to the pending queue, move or remove it; return whether a job may start by that.

    Not if it is behind the head of its class: it fits only if the head does. In strict order, it
    may take over the reservation of a head that can never fit.
    """
    was_head = state.pending.remove(job)
    state.never_eligible.discard(job.id)
    if job.state is not JobState.PENDING or not is_eligible(state, job, now):
        return was_head
    job_rank, until, _ = rank(state.ranking_input(job), now)
    is_head = state.pending.add(job, state.class_key(job), job_rank)
    gpus = state.specs[job.spec].request.gpus
    if gpus is not None and gpus.max_amount is not None:
        state.pending_elastic[job.id] = None
    state.rank_timers.set(job.id, until)
    return (
        was_head
        or is_head
        or state.pending.class_of[job.id].request is None
        or bool(state.running_elastic)
        or may_preempt(state, state.pending.sort_key(job), first_victim(state, now))
    )


def dequeue(state: State, job: Job) -> None:
    """Remove a job from the pending queue: others may start, and need not stop for it."""
    if state.pending.remove(job) or state.preemptible:
        state.pending.request_planning()


def is_eligible(state: State, job: Job, now: float) -> bool:
    """Whether a pending job may be scheduled: not held, begin time reached, dependencies met."""
    dependency = dependency_of(state, job)
    if dependency is not None:
        status, _, delay_end = dependency_status_of(state, job, now)
        if status is DependencyStatus.MET and dependency.has_delay and not job.delay_over:
            job.delay_over = True
            state.changes.job(job.id)
        # Also when it is met: it may open again if the other job is retried.
        for other in dependency.jobs():
            state.dependents.setdefault(other, set()).add(job.id)
        if delay_end is not None:
            state.begin_timers.set(job.id, delay_end)
        if status is DependencyStatus.NEVER:
            state.never_eligible.add(job.id)
        if status is not DependencyStatus.MET:
            return False
    if job.held:
        return False
    if job.begin_at is not None:
        state.begin_timers.set(job.id, job.begin_at)
        return False
    return True


def requeue_all(state: State, queue: str | None, at: float) -> None:
    """Compute rank and class of all pending jobs of a queue, or of all queues, again."""
    for id in list(state.pending.class_of):
        if queue is None or state.specs[state.jobs[id].spec].queue == queue:
            update_eligibility(state, state.jobs[id], at)
    for job in list(state.preemptible.values()):
        if queue is None or state.specs[job.spec].queue == queue:
            update_preemptible(state, job, at)


def requeue_for_nodes(state: State, at: float, models: list[str]) -> None:
    """Requeue pending jobs that may run on other nodes, after nodes came, went or changed.

    `models`: the GPU models before. Jobs without a placement are ranked by them, so that all jobs
    are requeued if they have changed.
    """
    queues: list[str | None] = list(move_queue_devices(state))
    has_other_models = models != list(state.cluster.gpu_models)
    if has_other_models:
        state.recount_demands()
    for queue in [None] if has_other_models or state.record.missing_devices else queues:
        requeue_all(state, queue, at)


def apply_policy_change(state: State, queue: str | None, at: float) -> None:
    """Requeue all jobs of a queue, or of all queues, after its policy changed."""
    state.usage.current.clear()  # as after a restart: charge running jobs by the new policies
    for job in state.running.values():
        charge_start(state, job)
    requeue_all(state, queue, at)


# -- dependencies ---------------------------------------------------------------------------


def dependency_status_of(
    state: State, job: Job, now: float
) -> tuple[DependencyStatus, list[int], float | None]:
    """Return the status of a job's dependency, the jobs that keep it open, and a delay's end."""
    dependency = dependency_of(state, job)
    if dependency is None:
        return DependencyStatus.MET, [], None
    return dependency.status(partial(dependency_target, state), inf if job.delay_over else now)


def dependency_target(state: State, id: int) -> DependencyTarget | None:
    """Return a job or a sweep as its dependents see it."""
    sweep, job = state.sweeps.get(id), state.jobs.get(id)
    if sweep is not None:
        began = sweep.created_at if sweep.issued else None
        return DependencyTarget(not sweep.is_open, sweep.is_success, began)
    if job is None:
        return None
    started = [past.started_at for past in job.past if past.started_at is not None]
    last = job.started_at if job.started_at is not None or not started else started[-1]
    return DependencyTarget(
        job.finished, job.state is JobState.COMPLETED, last, id in state.never_eligible
    )


def dependency_of(state: State, job: Job) -> Dependency | None:
    """Return the dependency of a job; of another array, only the member with the same index."""
    dependency = state.specs[job.spec].dependency
    if dependency is not None and dependency.is_by_member:
        return replace(
            dependency,
            clauses=tuple(
                replace(clause, jobs=_same_index(state, job, clause.jobs))
                if clause.kind == "aftercorr"
                else clause
                for clause in dependency.clauses
            ),
        )
    return dependency


def _same_index(state: State, job: Job, others: tuple[int, ...]) -> tuple[int, ...]:
    members = [state.jobs[id] for id in others if id in state.jobs]
    same_index = tuple(member.id for member in members if member.index == job.index)
    return same_index or others


def unlink_dependency(state: State, job: Job) -> None:
    """Remove a job from the dependents of other jobs."""
    dependency = state.specs[job.spec].dependency
    for other in dependency.jobs() if dependency else ():
        dependents = state.dependents.get(other)
        if dependents is not None:
            dependents.discard(job.id)
            if not dependents:
                del state.dependents[other]


def update_dependents(state: State, other: int, at: float) -> None:
    """Update the eligibility of all jobs that depend on a job or a sweep."""
    by_spec: dict[str, DependencyStatus | None] = {}  # thousands of jobs may share a spec
    for id in sorted(state.dependents.get(other, ())):
        dependent = state.jobs[id]
        if dependent.spec not in by_spec:
            by_spec[dependent.spec] = _common_status(state, dependent, other, at)
        before = id in state.pending
        if before or by_spec[dependent.spec] is not _unmet_status(state, dependent):
            update_eligibility(state, dependent, at)
            if id in state.pending and not before:
                dependent.ready_at = at
                state.changes.job(id)


def _unmet_status(state: State, dependent: Job) -> DependencyStatus:
    """Return the status of an unmet dependency, as last determined."""
    is_never_eligible = dependent.id in state.never_eligible
    return DependencyStatus.NEVER if is_never_eligible else DependencyStatus.OPEN


def _common_status(state: State, dependent: Job, other: int, at: float) -> DependencyStatus | None:
    """Return the status for all dependents with the same spec; None if it may differ."""
    dependency = state.specs[dependent.spec].dependency
    if dependency is None or dependency.is_by_member or dependency.has_delay:
        return None
    if _waits_for_others(state, dependency, other):
        return _unmet_status(state, dependent)
    return dependency_status_of(state, dependent, at)[0]


def _waits_for_others(state: State, dependency: Dependency, other: int) -> bool:
    """Whether other unfinished jobs keep a dependency open, and this one cannot decide it.

    Searched from the last job: the members of an array end about in order, and comparing each that
    ends with all others would be quadratic.
    """
    kinds = {clause.kind for clause in dependency.clauses}
    target = dependency_target(state, other)
    if target is None or target.never_eligible or dependency.any or not kinds <= _AFTER_END:
        return False
    if target.finished and not target.ok and kinds != {"afterany"}:
        return False
    jobs = (job for clause in reversed(dependency.clauses) for job in reversed(clause.jobs))
    others = (dependency_target(state, job) for job in jobs if job != other)
    first = next((each for each in others if each is not None and not each.finished), None)
    return first is not None and not first.never_eligible
