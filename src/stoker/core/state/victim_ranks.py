"""Ranks of running jobs in the index of victims, which are updated when a job may be preempted."""

from __future__ import annotations

from math import inf, log2

from stoker.core.model.job import Job
from stoker.core.policies.ranking import OVERDUE_RANK, hysteresis_of, rank
from stoker.core.running.victims import VictimKey
from stoker.core.state.state import State


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
