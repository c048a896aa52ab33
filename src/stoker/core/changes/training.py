"""Training jobs: what is heard of them, and how they make room for others."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.changes import lessons
from stoker.core.changes.attempts import current
from stoker.core.changes.step import move
from stoker.core.instructions import (
    AskToStop,
    EndAttempt,
    Instruction,
    LetGoOn,
    SignalAttempt,
)
from stoker.core.job import Job, Progress, Stop
from stoker.core.lifecycle import JobState
from stoker.core.policy.share import corrected, memory_of
from stoker.core.standings import (
    look_whether_stoppable,
    look_who_may_displace,
    other_policies,
    readmit,
    stand_anew,
)
from stoker.core.state import State

Wishes = list[Instruction]


def on_training_began(state: State, event: e.TrainingBegan) -> Wishes:
    """The library is there, and will hear a wish to stop."""
    job = current(state, event.job, event.attempt)
    if job is None:
        return []
    job.progress = replace(job.progress or Progress(), listening=True)
    state.touched.add(job.id)
    look_whether_stoppable(state, job, event.at)
    if job.id in state.stoppable:
        look_who_may_displace(state, job)
    state.line.stirred |= job.id in state.elastic or job.id in state.sharing
    _reports(state, job, event.at)
    return [AskToStop(job.id, job.attempt)] if job.progress.stop is not None else []


def _reports(state: State, job: Job, at: float) -> None:
    """A job of its queue reports epochs: from now on, that may count there."""
    queue = state.spec(job).queue
    if queue in state.rest.reporting:
        return
    before = state.policy(queue)
    state.rest.reporting[queue] = None
    state.rest_changed = True
    state.policies.forget()
    if state.policy(queue) is not before:
        other_policies(state, queue, at)


def on_epochs_counted(state: State, event: e.EpochsCounted) -> Wishes:
    """Work is done and saved; and we know better how fast it goes and what it needs."""
    job = current(state, event.job, event.attempt)
    if job is None:
        return []
    before = job.progress or Progress()
    done = max(event.done, before.epochs)
    metrics = before.metrics if event.metrics is None else event.metrics
    begun = before.counted_at  # what is heard of an epoch while it goes on does not end it
    if begun is None or done > before.epochs or event.seconds is None:
        begun = event.at
    total = before.total if event.total is None else event.total
    job.progress = replace(before, epochs=done, counted_at=begun, metrics=metrics, total=total)
    state.touched.add(job.id)
    lessons.learn(state, job, event)
    if job.id in state.stoppable:
        stand_anew(state, job, event.at)
        look_who_may_displace(state, job)
    _correct(state, job)
    # Where somebody holds a place until others end, those behind may fit before its new end.
    state.line.stirred |= job.id in state.elastic or state.policies.ends_matter(state.line.queues)
    return []


def on_kind_measured(state: State, event: e.KindMeasured) -> Wishes:
    """Somebody has measured a kind of job before."""
    lessons.told(state, event)
    readmit(state, None, event.at)
    state.line.stirred = True
    return []


def on_memory_measured(state: State, event: e.MemoryMeasured) -> Wishes:
    """It uses more than was known; if more than it has, its neighbours must not suffer."""
    job = current(state, event.job, event.attempt)
    if job is None:
        return []
    progress = job.progress or Progress()
    job.progress = replace(progress, peak=max(event.memory, progress.peak or 0))
    state.touched.add(job.id)
    lessons.used(state, job, event.memory, event.at)
    _correct(state, job)
    return []


def _correct(state: State, job: Job) -> None:
    placement = corrected(job, state.spec(job))
    if placement is None or job.placement is None or job.progress is None:
        return
    if lessons.on_gone_devices(state, job):
        return  # nobody else gets what its machine no longer offers
    if memory_of(placement) > memory_of(job.placement) > 0:
        job.progress = replace(job.progress, grew=True)
    state.reserve_anew(job, placement)


def on_stop_asked(state: State, event: e.StopAsked) -> Wishes:
    """It is to make room: at its next checkpoint, or as it said it wants to be told."""
    job = current(state, event.job, event.attempt)
    if job is None or job.state is not JobState.RUNNING:
        return []
    progress, spec = job.progress or Progress(), state.spec(job)
    stop = Stop(event.why, event.boot, event.by, event.gpus)
    job.progress = replace(progress, stop=stop)
    state.touched.add(job.id)
    state.look_whether_leaving(job)
    if progress.listening:
        return [AskToStop(job.id, job.attempt)]
    if spec.warning is not None:
        return [SignalAttempt(job.id, job.attempt, spec.warning.signal, if_caught=True)]
    return _end(state, job)


def on_stop_withdrawn(state: State, event: e.StopWithdrawn) -> Wishes:
    """It may go on, if it has not stopped by now."""
    job = current(state, event.job, event.attempt)
    if job is None or job.progress is None or job.progress.stop is None:
        return []
    job.progress = replace(job.progress, stop=None)
    state.touched.add(job.id)
    state.look_whether_leaving(job)
    return [LetGoOn(job.id, job.attempt)] if job.progress.listening else []


def on_stop_overdue(state: State, event: e.StopOverdue) -> Wishes:
    """It had its grace. If its owner has not said that it may be begun anew, others must do."""
    job = current(state, event.job, event.attempt)
    if job is None or job.state is not JobState.RUNNING:
        return []
    stop = job.progress.stop if job.progress is not None else None
    if event.has_saved or (stop is not None and state.spec(job).restartable):
        return _end(state, job)
    if job.progress is None or stop is None:
        return []
    job.progress = replace(job.progress, stop=replace(stop, ignored=True))
    state.touched.add(job.id)
    state.line.stirred = True
    return []


def _end(state: State, job: Job) -> Wishes:
    job.ending = "stop"
    move(state, job, JobState.COMPLETING)
    return [EndAttempt(job.id, job.attempt)]


def on_estimate_exceeded(state: State, event: e.EstimateExceeded) -> Wishes:
    """It took far longer than it said: worth showing. Its place follows from the time left."""
    job = state.jobs.get(event.job)
    if job is None or job.finished:
        return []
    job.progress = replace(job.progress or Progress(), overran=True)
    state.touched.add(job.id)
    return []
