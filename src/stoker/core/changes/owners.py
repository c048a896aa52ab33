"""What owners do to their jobs."""

from __future__ import annotations

from stoker.core import events as e
from stoker.core.admission import admit, step_out, unlink
from stoker.core.changes.attempts import finish, look_whether_over, set_deadline, wake_dependents
from stoker.core.changes.step import move
from stoker.core.instructions import (
    EndAttempt,
    Instruction,
    ResumeAttempt,
    SignalAttempt,
    SuspendAttempt,
)
from stoker.core.job import NEEDLESS, Job
from stoker.core.lifecycle import JobState
from stoker.core.standings import look_who_may_displace, stand_anew
from stoker.core.state import State
from stoker.core.trials import look_whether_best, note_trial, sweep_of

Wishes = list[Instruction]


def on_job_cancelled(state: State, event: e.JobCancelled) -> Wishes:
    """A waiting job ends here; a running one when its last process is gone."""
    job = state.jobs[event.job]
    if job.state is JobState.PENDING:
        step_out(state, job)
        state.line.stirred |= bool(state.stoppable)  # somebody may have been asked to make room
        job.ended_at, job.cause = event.at, NEEDLESS if event.needless else "cancelled"
        return finish(state, job, JobState.CANCELLED, event.at)
    if not job.holding:
        return []
    job.ending = "cancel"
    state.touched.add(job.id)
    if job.state is not JobState.COMPLETING:
        move(state, job, JobState.COMPLETING)
    return [EndAttempt(job.id, job.attempt, event.at_once)]


def on_job_held(state: State, event: e.JobHeld) -> Wishes:
    """It waits until released."""
    job = state.jobs[event.job]
    job.held = True
    state.touched.add(job.id)
    step_out(state, job)
    state.line.stirred |= bool(state.stoppable)
    return []


def on_job_released(state: State, event: e.JobReleased) -> Wishes:
    """It waits like any other again."""
    job = state.jobs[event.job]
    job.held, job.ready_at = False, event.at
    state.touched.add(job.id)
    admit(state, job, event.at)
    return []


def on_job_paused(state: State, event: e.JobPaused) -> Wishes:
    """Its processes stop; its devices stay held."""
    job = state.jobs[event.job]
    move(state, job, JobState.SUSPENDED)
    job.paused_boot = event.boot
    return [SuspendAttempt(job.id, job.attempt)]


def on_job_resumed(state: State, event: e.JobResumed) -> Wishes:
    """Its processes go on; the pause does not count against its time."""
    job = state.jobs[event.job]
    move(state, job, JobState.RUNNING)
    pause = max(event.boot - (job.paused_boot or event.boot), 0.0)
    job.slack += pause
    if job.progress is not None:
        job.progress = job.progress.later(pause)  # nobody comes to a checkpoint meanwhile
    state.line.stirred |= bool(state.stoppable)
    job.paused_boot = None
    return [ResumeAttempt(job.id, job.attempt)]


def on_job_signalled(state: State, event: e.JobSignalled) -> Wishes:
    """Pass the signal on."""
    job = state.jobs[event.job]
    return [SignalAttempt(job.id, job.attempt, event.signal)]


def on_job_retried(state: State, event: e.JobRetried) -> Wishes:
    """Another attempt of a finished job; jobs that wait for it have hope again."""
    job = state.jobs[event.job]
    again_from_the_start = job.state is JobState.COMPLETED
    move(state, job, JobState.PENDING)
    sweep = sweep_of(state, job)
    if sweep is not None:
        look_whether_over(state, sweep, event.at)
    job.attempt += 1
    job.retries = job.requeues = 0
    job.begin_at, job.ended_at, job.cause = None, None, None
    job.code = job.signal = job.note = job.started_at = job.started_boot = None
    job.ending, job.seen, job.held = None, False, False
    job.same_devices = event.same_devices
    if again_from_the_start:
        job.progress = None
    job.score = None
    note_trial(state, job)
    look_whether_best(state, job)
    deadline = state.deadline(job)
    job.late = job.late or (deadline is not None and deadline <= event.at)
    set_deadline(state, job)
    admit(state, job, event.at)
    wake_dependents(state, job.id, event.at)
    return []


def on_job_edited(state: State, event: e.JobEdited) -> Wishes:
    """Change what a pending job requests, or the time limit and priority of a running one."""
    job = state.jobs[event.job]
    if job.holding:
        return _edit_running(state, job, event)
    step_out(state, job)
    if event.spec != job.spec:
        unlink(state, job)
        _use_spec(state, job, event.spec)
        job.delay_over = False
        set_deadline(state, job)
    job.name, job.priority, job.begin_at = event.name, event.priority, event.begin_at
    state.touched.add(job.id)
    admit(state, job, event.at)
    state.line.stirred |= bool(state.stoppable)
    return []


def _edit_running(state: State, job: Job, event: e.JobEdited) -> Wishes:
    if event.spec != job.spec:
        _use_spec(state, job, event.spec)
        job.warned = False  # the warning belongs to the limit that was replaced
    job.priority = event.priority
    state.touched.add(job.id)
    if job.id in state.stoppable:
        stand_anew(state, job, event.at)
        look_who_may_displace(state, job)
    state.line.stirred = True  # reservations depend on the end, preemption on the priority
    return []


def _use_spec(state: State, job: Job, hash: str) -> None:
    state.spec_users[hash] = state.spec_users.get(hash, 0) + 1
    state.drop_spec(job.spec)
    job.spec = hash


def on_job_moved(state: State, event: e.JobMoved) -> Wishes:
    """A waiting job has another place in line."""
    job = state.jobs[event.job]
    step_out(state, job)
    job.priority, job.rank = event.priority, event.rank
    state.touched.add(job.id)
    admit(state, job, event.at)
    state.line.stirred |= bool(state.stoppable)
    return []
