"""Handlers of training jobs: reports, measurements and preemption."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.events.instructions import (
    Instructions,
    RequestStop,
    SignalAttempt,
    WithdrawStop,
)
from stoker.core.handlers import learning
from stoker.core.handlers.attempts import terminate
from stoker.core.measurement.gpu_memory import adjusted_placement, reserved_memory
from stoker.core.model.job import Job, Progress, StopRequest
from stoker.core.model.lifecycle import JobState
from stoker.core.state.reranking import (
    apply_policy_change,
    check_preemption_after_rerank,
    requeue_all,
    rerank_running,
    update_preemptible,
)
from stoker.core.state.state import State


def on_training_began(state: State, job: Job, event: e.TrainingBegan) -> Instructions:
    """Note that the training library runs and accepts stop requests."""
    job.progress = replace(job.progress or Progress(), accepts_stop=True)
    state.changes.job(job.id)
    update_preemptible(state, job, event.at)
    if job.id in state.preemptible:
        check_preemption_after_rerank(state, job)
    if job.id in state.running_elastic or job.id in state.sharing:
        state.pending.request_planning()
    return [RequestStop(job.id, job.attempt)] if job.progress.stop is not None else []


def _record_progress(state: State, job: Job, at: float) -> None:
    """Note that a job of this queue reports epochs, which may change its policy and ranks."""
    queue = state.spec(job).queue
    if queue in state.record.queues_with_progress:
        return
    before = state.policy_of(queue)
    state.record.queues_with_progress[queue] = None
    state.changes.record()
    state.policies.invalidate()
    if state.policy_of(queue) is not before or before.service_levels:
        apply_policy_change(state, queue, at)


def on_epochs_counted(state: State, job: Job, event: e.EpochsCounted) -> Instructions:
    """Record finished epochs, and what they tell of speed and memory."""
    before = job.progress or Progress()
    done = max(event.done, before.epochs)
    metrics = before.metrics if event.metrics is None else event.metrics
    epoch_started_at = before.epoch_started_at  # a report during an epoch does not end it
    if epoch_started_at is None or done > before.epochs or event.seconds is None:
        epoch_started_at = event.at
    total = before.total if event.total is None else event.total
    job.progress = replace(
        before, epochs=done, epoch_started_at=epoch_started_at, metrics=metrics, total=total
    )
    state.changes.job(job.id)
    learning.record_epochs(state, job, event)
    _record_progress(state, job, event.at)
    if job.id in state.preemptible:
        rerank_running(state, job, event.at)
        check_preemption_after_rerank(state, job)
    _adjust_memory(state, job)
    # A reservation may move with the new end of this job, so others may fit before it.
    if job.id in state.running_elastic or state.uses_release_times():
        state.pending.request_planning()
    return []


def on_profile_imported(state: State, event: e.ProfileImported) -> Instructions:
    """Import a job profile that was measured elsewhere."""
    learning.import_profile(state, event)
    requeue_all(state, None, event.at)
    state.pending.request_planning()
    return []


def on_memory_measured(state: State, job: Job, event: e.MemoryMeasured) -> Instructions:
    """Record the GPU memory of an attempt and adjust its allocation."""
    progress = job.progress or Progress()
    job.progress = replace(progress, peak=max(event.memory, progress.peak or 0))
    state.changes.job(job.id)
    learning.record_memory(state, job, event.memory, event.at)
    _adjust_memory(state, job)
    return []


def _adjust_memory(state: State, job: Job) -> None:
    placement = adjusted_placement(job, state.spec(job))
    if placement is None or job.placement is None or job.progress is None:
        return
    if learning.held_removed_devices(state, job):
        return  # its node no longer offers these devices to other jobs
    if reserved_memory(placement) > reserved_memory(job.placement) > 0:
        job.progress = replace(job.progress, exceeded_reservation=True)
    state.resize_memory(job, placement)


def on_preemption_requested(state: State, job: Job, event: e.PreemptionRequested) -> Instructions:
    """Request a job to stop at its next checkpoint, by its early signal, or terminate it."""
    if job.state is not JobState.RUNNING:
        return []
    progress, spec = job.progress or Progress(), state.spec(job)
    stop = StopRequest(event.why, event.boot, event.by, event.gpus)
    job.progress = replace(progress, stop=stop)
    state.changes.job(job.id)
    state.update_stopping(job)
    if event.at_once:
        return terminate(state, job, "stop")
    if progress.accepts_stop:
        return [RequestStop(job.id, job.attempt)]
    if (early := spec.early_signal) is not None:
        to_script = early.to_script
        return [SignalAttempt(job.id, job.attempt, early.signal, True, to_script)]
    return terminate(state, job, "stop")


def on_preemption_cancelled(state: State, job: Job, event: e.PreemptionCancelled) -> Instructions:
    """Withdraw a stop request, if the job has not stopped yet."""
    if job.progress is None or job.progress.stop is None:
        return []
    job.progress = replace(job.progress, stop=None)
    state.changes.job(job.id)
    state.update_stopping(job)
    return [WithdrawStop(job.id, job.attempt)] if job.progress.accepts_stop else []


def on_preemption_timed_out(state: State, job: Job, event: e.PreemptionTimedOut) -> Instructions:
    """Terminate a job that did not stop in time; if it is not requeueable, let it run on."""
    if job.state is not JobState.RUNNING:
        return []
    stop = job.progress.stop if job.progress is not None else None
    if event.has_saved or (stop is not None and state.spec(job).requeueable):
        return terminate(state, job, "stop")
    if job.progress is None or stop is None:
        return []
    job.progress = replace(job.progress, stop=replace(stop, timed_out=True))
    state.changes.job(job.id)
    state.pending.request_planning()
    return []


def on_estimate_exceeded(state: State, event: e.EstimateExceeded) -> Instructions:
    """Mark a job that takes far longer than expected, for users; its rank does not change."""
    job = state.jobs.get(event.job)
    if job is None or job.finished:
        return []
    job.progress = replace(job.progress or Progress(), overran=True)
    state.changes.job(job.id)
    return []
