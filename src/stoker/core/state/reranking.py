"""Keep the ranks of pending and running jobs current, and notice when preemption may help."""

from __future__ import annotations

from math import inf

from stoker.core.measurement.gpu_memory import is_preemptible
from stoker.core.model.job import Job
from stoker.core.policies.ranking import gpus_of, rank
from stoker.core.queue.job_class import OVERDUE_CUTOFF
from stoker.core.state.eligibility import enqueue_if_eligible, may_preempt, update_eligibility
from stoker.core.state.node_updates import move_queue_devices
from stoker.core.state.state import State

RANK_DROP_DELAY_SECONDS = 0.001
"""A rank is lower just after the computed time; without a delay it may be computed for ever."""


def refresh_ranks(state: State, at: float) -> None:
    """Update the ranks that change by now."""
    if state.pending.fair_share_users:
        _refresh_fair_share(state, at)
    if state.memory.next_rebalance <= at:
        state.memory.next_rebalance = inf
        state.pending.request_planning()
    for id in state.rank_timers.due(at):
        job = state.jobs.get(id)
        if job is None:
            continue
        if id in state.pending:
            # A better rank lets a job start only if it is overdue now or may preempt.
            enqueue_if_eligible(state, job, at)
            key = state.pending.sort_key(job)
            is_overdue = key[1] <= OVERDUE_CUTOFF
            if is_overdue or may_preempt(state, key, state.victims.first_victim()):
                state.pending.request_planning()
        elif id in state.preemptible:
            rerank_running(state, job, at)
            check_preemption_after_rerank(state, job)
    # After the timers: computing a rank again sets its timer again, which would hide a due one.
    for id in state.rank_drops.due(at):
        if (running := state.preemptible.get(id)) is not None:
            rerank_running(state, running, at)
        elif id in state.pending:
            enqueue_if_eligible(state, state.jobs[id], at)


def _refresh_fair_share(state: State, at: float) -> None:
    """Update the fair-share penalties of all users with pending or running jobs."""
    users = sorted({*state.pending.fair_share_users, *state.usage.current})
    for user, penalty in state.usage.user_penalties(users, at).items():
        if state.pending.user_penalties.get(user, 0.0) != penalty:
            state.pending.penalize_user(user, penalty)
            state.pending.request_planning()
            for job in [job for job in state.preemptible.values() if job.user == user]:
                rerank_running(state, job, at)


def requeue_all(state: State, queue: str | None, at: float) -> None:
    """Compute rank and class of all pending jobs of a queue, or of all queues, again."""
    state.pending.mark_all_unchecked()
    for id in list(state.pending.class_of):
        if queue is None or state.specs[state.jobs[id].spec].queue == queue:
            update_eligibility(state, state.jobs[id], at)
    for job in list(state.preemptible.values()):
        if queue is None or state.specs[job.spec].queue == queue:
            update_preemptible(state, job, at)


def requeue_for_nodes(state: State, at: float) -> None:
    """Requeue pending jobs that may run on other nodes, after nodes came, went or changed."""
    queues: list[str | None] = list(move_queue_devices(state))
    for queue in [None] if state.record.missing_devices else queues:
        requeue_all(state, queue, at)


def update_preemptible(state: State, job: Job, at: float) -> None:
    """Update the index of preemptible jobs: those that can be stopped by request or by signal.

    Never on a delegated node: another scheduler assigns what is freed there.
    """
    if job.started_at is None or state.is_delegated(job):
        return
    if is_preemptible(job, state.specs[job.spec]):
        state.preemptible[job.id] = job
        rerank_running(state, job, at)


def rerank_running(state: State, job: Job, at: float) -> None:
    """Update the rank of a running job in the index of victims."""
    inputs = state.ranking_input(job)
    job_rank, until, valid_until = rank(inputs, at) if inputs.policy.preempts else (0.0, inf, inf)
    if inputs.policy.fair and job_rank > OVERDUE_CUTOFF:
        job_rank += inputs.policy.fair * state.pending.user_penalties.get(job.user, 0.0)
    started = job.started_at or 0.0
    state.victims.add(job.id, job.placement, job.priority, job_rank, started)
    state.rank_drops.set(job.id, max(valid_until, at) + RANK_DROP_DELAY_SECONDS)
    if inputs.policy.quantum and job.started_at is not None:
        quantum_end = job.started_at + inputs.policy.quantum
        until = min(until, quantum_end) if quantum_end > at else until
    state.rank_timers.set(job.id, until)


def check_preemption_after_rerank(state: State, job: Job) -> None:
    """Request planning if a pending job may preempt a running job with its new rank."""
    first = state.pending.lower_bound()
    if first is not None and may_preempt(state, first, state.victims.key_of(job.id)):
        state.victims.mark_changed(job.id)
        state.pending.request_planning()


def any_preemption_possible(state: State) -> bool:
    """Whether the first pending job may preempt the first victim."""
    first = state.pending.lower_bound()
    return first is not None and may_preempt(state, first, state.victims.first_victim())


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


def apply_policy_change(state: State, queue: str | None, at: float) -> None:
    """Requeue all jobs of a queue, or of all queues, after its policy changed."""
    state.usage.current.clear()  # as after a restart: charge running jobs by the new policies
    for job in state.running.values():
        charge_start(state, job)
    requeue_all(state, queue, at)
