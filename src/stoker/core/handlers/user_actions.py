"""Handlers of user actions on jobs, and of the times that users set for them."""

from __future__ import annotations

from stoker.core import events as e
from stoker.core.events import instructions as do
from stoker.core.handlers.attempts import finish, terminate, transition
from stoker.core.model.job import NO_PROGRESS, NOT_NEEDED_CAUSE, Job, JobState
from stoker.core.state import eligibility
from stoker.core.state import sweep_boards as boards
from stoker.core.state.reranking import rerank_victim
from stoker.core.state.state import State


def on_acted(state: State, event: e.Acted) -> None:
    """Change nothing: it is recorded for `history --acts`."""


def on_job_cancelled(state: State, job: Job, event: e.JobCancelled) -> do.Instructions:
    """Finish a pending job; terminate a running one, which finishes when its processes ended."""
    if job.state is JobState.PENDING:
        eligibility.dequeue(state, job)
        job.ended_at, job.cause = event.at, NOT_NEEDED_CAUSE if event.needless else "cancelled"
        return finish(state, job, JobState.CANCELLED, event.at)
    if not job.holding:
        return []
    job.ending_cause = event.why or None
    return terminate(state, job, "cancel", event.at_once)


def on_job_held(state: State, job: Job, event: e.JobHeld) -> None:
    """Hold a job until it is released."""
    job.held = True
    eligibility.dequeue(state, job)


def on_job_released(state: State, job: Job, event: e.JobReleased) -> None:
    """Release a held job."""
    job.held, job.ready_at = False, event.at
    eligibility.update_eligibility(state, job, event.at)


def on_job_paused(state: State, job: Job, event: e.JobPaused) -> do.Instructions:
    """Suspend the processes of a job; its devices stay allocated."""
    transition(state, job, JobState.SUSPENDED)
    job.paused_boot = event.boot
    return [do.SuspendAttempt(job.id, job.attempt)]


def on_job_resumed(state: State, job: Job, event: e.JobResumed) -> do.Instructions:
    """Resume the processes of a job; the pause does not count against its time limit."""
    transition(state, job, JobState.RUNNING)
    pause = max(event.boot - (job.paused_boot or event.boot), 0.0)
    job.slack += pause
    job.progress = job.progress.with_stop_postponed(pause)  # a pause reaches no checkpoint
    if state.preemptible:
        state.pending.request_planning()
    job.paused_boot = None
    return [do.ResumeAttempt(job.id, job.attempt)]


def on_job_signalled(state: State, job: Job, event: e.JobSignalled) -> do.Instructions:
    """Send a signal to a job."""
    return [do.SignalAttempt(job.id, job.attempt, event.signal, to_script=event.to_script)]


def on_job_retried(state: State, job: Job, event: e.JobRetried) -> None:
    """Requeue a finished job; dependencies on it may be met again."""
    again_from_the_start = job.state is JobState.COMPLETED
    transition(state, job, JobState.PENDING)
    sweep = boards.sweep_of(state, job)
    if sweep is not None:
        boards.update_sweep_finished(state, sweep, event.at)
    job.attempt += 1
    job.retries = job.requeues = 0
    job.begin_at, job.ended_at, job.cause = None, None, None
    job.code = job.signal = job.note = job.started_at = job.started_boot = None
    job.ending, job.seen, job.held = None, False, False
    job.same_devices = event.same_devices
    if again_from_the_start:
        job.progress = NO_PROGRESS
    job.score = None
    boards.update_trial(state, job)
    job.late = job.late or state.deadline(job) <= event.at
    eligibility.update_eligibility(state, job, event.at)
    eligibility.update_dependents(state, job.id, event.at)


def on_job_edited(state: State, job: Job, event: e.JobEdited) -> None:
    """Change what a pending job requests, or the time limit and priority of a running one."""
    eligibility.dequeue(state, job)
    eligibility.unlink_dependency(state, job)
    state.uncount_demand(job)
    state.deindex_profile(job)
    is_same_spec = event.spec == job.spec
    job.spec, job.priority = event.spec, event.priority
    if job.holding:
        job.warned = job.warned and is_same_spec  # the warning belongs to a limit
        rerank_victim(state, job, event.at)
        # Reservations depend on the end, preemption on the priority.
        state.pending.request_planning()
    else:
        job.name, job.begin_at = event.name, event.begin_at
        job.delay_over = job.delay_over and is_same_spec
        eligibility.update_eligibility(state, job, event.at)
    state.index_profile(job)
    state.count_demand(job)


def on_job_moved(state: State, job: Job, event: e.JobMoved) -> None:
    """Change priority and order of a pending job."""
    eligibility.dequeue(state, job)
    job.priority, job.rank = event.priority, event.rank
    eligibility.update_eligibility(state, job, event.at)


def on_time_limit_reached(state: State, job: Job, event: e.TimeLimitReached) -> do.Instructions:
    """Terminate an attempt that reached its time limit."""
    if job.state is JobState.COMPLETING:
        return []
    return terminate(state, job, "time")


def on_time_limit_near(state: State, job: Job, event: e.TimeLimitNear) -> do.Instructions:
    """Send the early signal before the time limit."""
    early = state.spec(job).early_signal
    if early is None or job.warned:
        return []
    job.warned = True
    return [do.SignalAttempt(job.id, job.attempt, early.signal, to_script=early.to_script)]


def on_begin_time_reached(state: State, job: Job, event: e.BeginTimeReached) -> None:
    """Update the eligibility of a job after its begin time or delay."""
    if job.state is JobState.PENDING:
        if job.begin_at is not None and job.begin_at <= event.at:
            job.begin_at = None
            if not job.attempt:
                job.ready_at = event.at
        eligibility.update_eligibility(state, job, event.at)


def on_deadline_passed(state: State, job: Job, event: e.DeadlinePassed) -> do.Instructions:
    """Finish a pending job at its deadline; terminate a running one."""
    if job.finished or job.state is JobState.COMPLETING:
        return []
    if job.state is JobState.PENDING:
        eligibility.dequeue(state, job)
        job.ended_at, job.cause = event.at, "deadline"
        return finish(state, job, JobState.DEADLINE, event.at)
    return terminate(state, job, "deadline")


def on_notify_rule_added(state: State, event: e.NotifyRuleAdded) -> None:
    """Add a rule of notifications."""
    state.record.notify_rules[event.rule.id] = event.rule
    state.record.last_notify_rule = event.rule.id


def on_notify_rule_removed(state: State, event: e.NotifyRuleRemoved) -> None:
    """Remove a rule of notifications."""
    state.record.notify_rules.pop(event.id, None)
