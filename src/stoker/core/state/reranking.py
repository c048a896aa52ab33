"""Keep the ranks of pending and running jobs current, and notice when preemption may help."""

from __future__ import annotations

from math import inf, log2

from stoker.core.measurement.gpu_memory import is_preemptible
from stoker.core.model.job import Job
from stoker.core.policies.ranking import OVERDUE_RANK, gpus_of, hysteresis_of, rank
from stoker.core.running.victims import VictimKey
from stoker.core.state.state import REBALANCE_SECONDS, State
from stoker.core.structures import SortKey


def refresh_ranks(state: State, at: float) -> None:
    """Update the ranks of pending jobs that change by now, and those of running jobs that rise."""
    if not state.memory.has_current_ranks:  # restored without a new daemon
        rank_restored(state, at)
        state.pending.request_planning()
    if state.pending.fair_share_users:
        _refresh_fair_share(state, at)
    if state.limits.is_used and state.limits.refresh(at):
        state.pending.request_planning()
    if state.memory.next_rebalance <= at:
        state.memory.next_rebalance = inf
        state.pending.request_planning()
    for id in state.rank_timers.due(at):
        job = state.jobs[id]
        if id in state.pending:
            # A better rank lets a job start only if it is overdue now or may preempt.
            key = rerank_pending(state, job, at)
            if key[1] <= OVERDUE_RANK or may_preempt(state, key, first_victim(state, at)):
                state.pending.request_planning()
        else:
            rerank_victim(state, job, at)


def rank_restored(state: State, at: float) -> None:
    """Rank all jobs of a restored state, and set the time when an elastic job may be resized."""
    memory = state.memory
    memory.has_current_ranks = True
    for id in state.pending.class_of:
        rerank_pending(state, state.jobs[id], at)
    for job in state.preemptible.values():
        rerank_running(state, job, at)
    for job in state.running_elastic.values():
        end = (job.started_at or 0.0) + REBALANCE_SECONDS
        if end > at and state.preempts(job):
            memory.next_rebalance = min(memory.next_rebalance, end)


def fair_share_penalties(state: State, users: list[str], at: float) -> dict[str, float]:
    """Return the fair-share penalties of these users by their usage and weights."""
    if not state.record.shares:
        return state.usage.user_penalties(users, at)
    return state.usage.user_penalties(users, at, lambda user: state.record.weight_of(user)[0])


def _refresh_fair_share(state: State, at: float) -> None:
    """Update the fair-share penalties of all users with pending or running jobs."""
    users = sorted({*state.pending.fair_share_users, *state.usage.current})
    for user, penalty in fair_share_penalties(state, users, at).items():
        if state.pending.user_penalties.get(user, 0.0) != penalty:
            state.pending.penalize_user(user, penalty)
            state.pending.request_planning()
            for job in [job for job in state.preemptible.values() if job.user == user]:
                rerank_running(state, job, at)


def update_preemptible(state: State, job: Job, at: float) -> None:
    """Update the index of preemptible jobs: those that can be stopped by request or by signal.

    Never on a delegated node: another scheduler assigns what is freed there.
    """
    if job.started_at is None or state.is_delegated(job):
        return
    if is_preemptible(job, state.specs[job.spec]):
        state.preemptible[job.id] = job
        rerank_running(state, job, at)


def rerank_pending(state: State, job: Job, now: float) -> SortKey:
    """Move a job in the pending queue by the time that has passed; return its sort key."""
    job_rank, until, _ = rank(state.ranking_input(job), now)
    state.rank_timers.set(job.id, until)
    return state.pending.set_rank(job, job_rank)


def rerank_running(state: State, job: Job, at: float) -> None:
    """Update the rank of a running job in the index of victims, and the time when it rises."""
    key, until, valid_until = victim_key(state, job, at)
    state.victims.add(key, job.placement, valid_until)
    quantum = state.policy_of(state.specs[job.spec].queue).quantum
    if quantum and job.started_at is not None:
        quantum_end = job.started_at + quantum
        until = min(until, quantum_end) if quantum_end > at else until
    state.rank_timers.set(job.id, until)


def rerank_victim(state: State, job: Job, at: float) -> None:
    """Update the rank of a running job if it is preemptible, and plan if it may be preempted."""
    if job.id in state.preemptible:
        rerank_running(state, job, at)
        check_preemption(state, job)


def check_preemption(state: State, job: Job) -> None:
    """Request planning if a pending job may preempt a running job with its new rank."""
    first = state.pending.lower_bound() if job.id in state.preemptible else None
    if first is not None and may_preempt(state, first, state.victims.key_of(job.id)):
        state.victims.mark_changed(job.id)
        state.pending.request_planning()


def charge_start(state: State, job: Job) -> None:
    """Charge the GPUs of a started attempt to its user."""
    spec = state.specs[job.spec]
    if state.policy_of(spec.queue).fair and job.started_at is not None:
        state.usage.charge_start(job.user, gpus_of(spec.request), job.started_at)


def charge_end(state: State, job: Job, at: float) -> None:
    """Charge the GPU-seconds of an ended attempt to its user."""
    spec = state.specs[job.spec]
    if state.policy_of(spec.queue).fair and job.started_at is not None:
        state.usage.charge_end(job.user, gpus_of(spec.request), job.started_at, at)
        state.changes.record()


# -- victims --------------------------------------------------------------------------------


def victim_key(state: State, job: Job, at: float) -> tuple[VictimKey, float, float]:
    """Return the place of a job among victims, when its rank rises, and until when it is valid."""
    inputs = state.ranking_input(job)
    policy = inputs.policy
    job_rank, until, valid_until = rank(inputs, at) if policy.preempts else (0.0, inf, inf)
    if policy.fair and job_rank > OVERDUE_RANK:
        job_rank += policy.fair * state.pending.user_penalties.get(job.user, 0.0)
    if policy.preempts:  # preemptors of any job must outrank it by the hysteresis of the policy
        job_rank += log2(policy.hysteresis) - hysteresis_of(job, policy)
    return (-job.priority, job_rank, job.started_at or 0.0, job.id), until, valid_until


def first_victim(state: State, at: float) -> VictimKey | None:
    """Return the key of the job that is preempted first."""
    while (key := state.victims.first_victim()) is not None:
        if not update_victim(state, key[3], at):
            break
    return key


def update_victims_on(state: State, node: str, at: float) -> None:
    """Update the ranks of the victims on a node."""
    for job in list(state.victims.freed_on.get(node, ())):
        update_victim(state, job, at)


def update_victim(state: State, job: int, at: float) -> bool:
    """Update the rank of a victim if it is too large; return whether it has changed.

    Its timer stays: if it is due, the next cycle checks whether it can be preempted now.
    """
    if not state.victims.is_outdated(job, at):
        return False
    key, _, valid_until = victim_key(state, state.jobs[job], at)
    return state.victims.add(key, None, valid_until)


def may_preempt(state: State, key: SortKey, victim: VictimKey | None) -> bool:
    """Whether a pending job outranks a running one by more than the hysteresis."""
    return victim is not None and (key[0], key[1] + state.policies.min_hysteresis) < victim[:2]
