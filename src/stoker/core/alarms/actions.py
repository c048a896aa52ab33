"""What follows from active alarms: attempts that are cancelled, repeated, or give GPUs back."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.core.cluster.overlay import Overlay
from stoker.core.events import JobCancelled, PreemptionRequested
from stoker.core.model.alarm import CANCEL, PREEMPT, RETRY, Alarm, cause_word
from stoker.core.model.job import Job, JobState
from stoker.core.placement.capacity import capacity_test
from stoker.core.placement.placer import find_placement
from stoker.core.queue.scan import SizeTest, fitting_heads
from stoker.core.running.victims import is_stopping
from stoker.core.state.state import REBALANCE_SECONDS, State

MAX_RETRIES = 3
"""Attempts of a job that an alarm of one kind ends to repeat them."""
UNRESPONSIVE = frozenset({"hung", "log_silent"})
"""Kinds of alarms after which an attempt will probably not reach a checkpoint."""

Action = JobCancelled | PreemptionRequested


def action_events(state: State, alarms: Iterable[Alarm], at: float, boot: float) -> list[Action]:
    """Return what follows from alarms, at most one event per job."""
    actions: dict[int, Action] = {}
    for alarm in alarms:
        job = state.running.get(alarm.job or 0)
        if job is None or job.attempt != alarm.attempt or job.state is not JobState.RUNNING:
            continue
        action = _action(state, job, alarm, at, boot) if job.id not in actions else None
        if action is not None:
            actions[job.id] = action
    return list(actions.values())


def _action(state: State, job: Job, alarm: Alarm, at: float, boot: float) -> Action | None:
    why, spec = alarm.cause(at), state.spec(job)
    if alarm.action == CANCEL:
        return JobCancelled(at=at, job=job.id, why=why)
    if alarm.action == RETRY and _times_ended(job, alarm.kind) < MAX_RETRIES:
        return PreemptionRequested(
            at=at, job=job.id, attempt=job.attempt, why=why, boot=boot, at_once=True
        )
    stop = job.progress.stop
    is_waited_for = stop is not None and not stop.timed_out
    if alarm.action != PREEMPT or spec.non_preemptible or is_waited_for:
        return None
    other = job_that_needs(state, job, at)
    if other is None:
        return None
    why = f"{why}, and job {other.label} needs its GPUs"
    if spec.pty:  # nothing is left of it that could go on later
        return JobCancelled(at=at, job=job.id, why=why)
    return PreemptionRequested(
        at=at, job=job.id, attempt=job.attempt, why=why, boot=boot, delay=REBALANCE_SECONDS,
        at_once=stop is not None or alarm.kind in UNRESPONSIVE,
    )  # fmt: skip


def _times_ended(job: Job, kind: str) -> int:
    """Return how many attempts of a job were ended by an alarm of this kind."""
    return sum(past.cause.startswith(f"stopped: {cause_word(kind)}") for past in job.past)


def job_that_needs(state: State, victim: Job, at: float) -> Job | None:
    """Return the first pending job that could start only if a running one ended."""
    if victim.placement is None or not len(state.pending):
        return None
    soon = Overlay(state.cluster)
    for job in state.stopping.values():
        if job.placement is not None and is_stopping(job):
            soon.release(job.placement)
    later = Overlay(soon)
    later.release(victim.placement)
    may_fit = SizeTest(lambda group: capacity_test(later, group.shape))
    for _, job_class in fitting_heads(state.pending, may_fit):
        job = state.jobs[job_class.head]
        request = state.startable_request(job, job_class, at)
        if (
            state.quota_reason(job_class) is None
            and find_placement(later, request) is not None
            and find_placement(soon, request) is None
        ):
            return job
    return None
