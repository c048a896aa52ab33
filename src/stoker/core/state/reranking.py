"""Keep the ranks of pending and running jobs current, and notice when preemption may help."""

from __future__ import annotations

from math import inf

from stoker.core.measurement.gpu_memory import is_preemptible
from stoker.core.model.job import Job
from stoker.core.policies.ranking import OVERDUE_RANK, gpus_of
from stoker.core.state.eligibility import may_preempt, rerank_pending, update_eligibility
from stoker.core.state.node_updates import move_queue_devices
from stoker.core.state.state import REBALANCE_SECONDS, State
from stoker.core.state.victim_ranks import first_victim, victim_key


def refresh_ranks(state: State, at: float) -> None:
    """Update the ranks of pending jobs that change by now, and those of running jobs that rise."""
    if not state.memory.has_current_ranks:  # restored without a new daemon
        rank_restored(state, at)
        state.pending.request_planning()
    if state.pending.fair_share_users:
        _refresh_fair_share(state, at)
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


def apply_policy_change(state: State, queue: str | None, at: float) -> None:
    """Requeue all jobs of a queue, or of all queues, after its policy changed."""
    state.usage.current.clear()  # as after a restart: charge running jobs by the new policies
    for job in state.running.values():
        charge_start(state, job)
    requeue_all(state, queue, at)
