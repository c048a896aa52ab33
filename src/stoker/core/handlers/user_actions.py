"""Handlers of user actions on jobs."""

from __future__ import annotations

from stoker.core import events as e
from stoker.core.events.instructions import (
    Instructions,
    ResumeAttempt,
    SignalAttempt,
    SuspendAttempt,
)
from stoker.core.handlers.attempts import finish, terminate, transition
from stoker.core.model.job import NOT_NEEDED_CAUSE, Job
from stoker.core.model.lifecycle import JobState
from stoker.core.state.eligibility import (
    dequeue,
    unlink_dependency,
    update_dependents,
    update_eligibility,
)
from stoker.core.state.reranking import check_preemption_after_rerank, rerank_running
from stoker.core.state.state import State
from stoker.core.state.sweep_boards import (
    record_trial,
    sweep_of,
    update_best,
    update_sweep_finished,
)
from stoker.core.state.timers import set_deadline


def on_job_cancelled(state: State, event: e.JobCancelled) -> Instructions:
    """Finish a pending job; terminate a running one, which finishes when its processes ended."""
    job = state.jobs[event.job]
    if job.state is JobState.PENDING:
        dequeue(state, job)
        job.ended_at, job.cause = event.at, NOT_NEEDED_CAUSE if event.needless else "cancelled"
        return finish(state, job, JobState.CANCELLED, event.at)
    if not job.holding:
        return []
    return terminate(state, job, "cancel", event.at_once)


def on_job_held(state: State, event: e.JobHeld) -> Instructions:
    """Hold a job until it is released."""
    job = state.jobs[event.job]
    job.held = True
    state.changes.job(job.id)
    dequeue(state, job)
    return []


def on_job_released(state: State, event: e.JobReleased) -> Instructions:
    """Release a held job."""
    job = state.jobs[event.job]
    job.held, job.ready_at = False, event.at
    state.changes.job(job.id)
    update_eligibility(state, job, event.at)
    return []


def on_job_paused(state: State, event: e.JobPaused) -> Instructions:
    """Suspend the processes of a job; its devices stay allocated."""
    job = state.jobs[event.job]
    transition(state, job, JobState.SUSPENDED)
    job.paused_boot = event.boot
    return [SuspendAttempt(job.id, job.attempt)]


def on_job_resumed(state: State, event: e.JobResumed) -> Instructions:
    """Resume the processes of a job; the pause does not count against its time limit."""
    job = state.jobs[event.job]
    transition(state, job, JobState.RUNNING)
    pause = max(event.boot - (job.paused_boot or event.boot), 0.0)
    job.slack += pause
    if job.progress is not None:
        job.progress = job.progress.with_stop_postponed(
            pause
        )  # no checkpoint is reached during a pause
    if state.preemptible:
        state.pending.request_planning()
    job.paused_boot = None
    return [ResumeAttempt(job.id, job.attempt)]


def on_job_signalled(state: State, event: e.JobSignalled) -> Instructions:
    """Send a signal to a job."""
    job = state.jobs[event.job]
    return [SignalAttempt(job.id, job.attempt, event.signal, to_script=event.to_script)]


def on_job_retried(state: State, event: e.JobRetried) -> Instructions:
    """Requeue a finished job; dependencies on it may be met again."""
    job = state.jobs[event.job]
    again_from_the_start = job.state is JobState.COMPLETED
    transition(state, job, JobState.PENDING)
    sweep = sweep_of(state, job)
    if sweep is not None:
        update_sweep_finished(state, sweep, event.at)
    job.attempt += 1
    job.retries = job.requeues = 0
    job.begin_at, job.ended_at, job.cause = None, None, None
    job.code = job.signal = job.note = job.started_at = job.started_boot = None
    job.ending, job.seen, job.held = None, False, False
    job.same_devices = event.same_devices
    if again_from_the_start:
        job.progress = None
    job.score = None
    record_trial(state, job)
    update_best(state, job)
    deadline = state.deadline(job)
    job.late = job.late or (deadline is not None and deadline <= event.at)
    set_deadline(state, job)
    update_eligibility(state, job, event.at)
    update_dependents(state, job.id, event.at)
    return []


def on_job_edited(state: State, event: e.JobEdited) -> Instructions:
    """Change what a pending job requests, or the time limit and priority of a running one."""
    job = state.jobs[event.job]
    if job.holding:
        return _edit_running(state, job, event)
    dequeue(state, job)
    has_new_spec = event.spec != job.spec
    if has_new_spec:
        unlink_dependency(state, job)
        job.delay_over = False
    _rename(state, job, event.spec, event.name)
    if has_new_spec:
        set_deadline(state, job)
    job.priority, job.begin_at = event.priority, event.begin_at
    state.changes.job(job.id)
    update_eligibility(state, job, event.at)
    return []


def _edit_running(state: State, job: Job, event: e.JobEdited) -> Instructions:
    if event.spec != job.spec:
        _rename(state, job, event.spec, job.name)
        job.warned = False  # the warning belongs to the limit that was replaced
    job.priority = event.priority
    state.changes.job(job.id)
    if job.id in state.preemptible:
        rerank_running(state, job, event.at)
        check_preemption_after_rerank(state, job)
    # Reservations depend on the end, preemption on the priority.
    state.pending.request_planning()
    return []


def _rename(state: State, job: Job, hash: str, name: str) -> None:
    """Give a job another spec or name."""
    spec = state.specs[hash]
    state.drop_spec(job)
    state.specs.setdefault(hash, spec)
    job.spec, job.name = hash, name
    state.use_spec(job)


def on_job_moved(state: State, event: e.JobMoved) -> Instructions:
    """Change priority and order of a pending job."""
    job = state.jobs[event.job]
    dequeue(state, job)
    job.priority, job.rank = event.priority, event.rank
    state.changes.job(job.id)
    update_eligibility(state, job, event.at)
    return []
