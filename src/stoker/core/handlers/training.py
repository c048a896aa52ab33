"""Handlers of training jobs: reports, measurements and preemption."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.events import instructions as do
from stoker.core.handlers import learning
from stoker.core.handlers.attempts import terminate
from stoker.core.measurement.gpu_memory import adjusted_placement, reserved_memory
from stoker.core.model.job import Job, JobState, StopRequest
from stoker.core.state import eligibility, reranking
from stoker.core.state.state import State


def on_training_began(state: State, job: Job, event: e.TrainingBegan) -> do.Instructions:
    """Note that the training library runs and accepts stop requests."""
    job.progress = replace(job.progress, accepts_stop=True)
    reranking.update_preemptible(state, job, event.at)
    reranking.check_preemption(state, job)
    if job.id in state.running_elastic or job.id in state.sharing:
        state.pending.request_planning()
    return [do.RequestStop(job.id, job.attempt)] if job.progress.stop is not None else []


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
        eligibility.apply_policy_change(state, queue, at)


def on_epochs_counted(state: State, job: Job, event: e.EpochsCounted) -> None:
    """Record finished epochs, and what they tell of speed and memory."""
    before = job.progress
    done = max(event.done, before.epochs)
    metrics = before.metrics if event.metrics is None else event.metrics
    epoch_started_at = before.epoch_started_at  # a report during an epoch does not end it
    if epoch_started_at is None or done > before.epochs or event.seconds is None:
        epoch_started_at = event.at
    total = before.total if event.total is None else event.total
    job.progress = replace(
        before, epochs=done, epoch_started_at=epoch_started_at, metrics=metrics, total=total
    )
    learning.record_epochs(state, job, event)
    _record_progress(state, job, event.at)
    reranking.rerank_victim(state, job, event.at)
    _adjust_memory(state, job)
    # A reservation may move with the new end of this job, so others may fit before it.
    if job.id in state.running_elastic or state.uses_release_times():
        state.pending.request_planning()


def on_memory_measured(state: State, job: Job, event: e.MemoryMeasured) -> None:
    """Record the GPU memory of an attempt and adjust its allocation."""
    job.progress = replace(job.progress, peak=max(event.memory, job.progress.peak or 0))
    learning.record_memory(state, job, event.memory, event.at)
    _adjust_memory(state, job)


def _adjust_memory(state: State, job: Job) -> None:
    placement = adjusted_placement(job, state.spec(job))
    # What its node no longer has stays as it is: no other job can use it.
    if placement is None or job.placement is None or learning.held_removed_devices(state, job):
        return
    if reserved_memory(placement) > reserved_memory(job.placement) > 0:
        job.progress = replace(job.progress, exceeded_reservation=True)
    state.resize_memory(job, placement)


def on_preemption_requested(
    state: State, job: Job, event: e.PreemptionRequested
) -> do.Instructions:
    """Request a job to stop at its next checkpoint, by its early signal, or terminate it."""
    if job.state is not JobState.RUNNING:
        return []
    progress, spec = job.progress, state.spec(job)
    stop = StopRequest(event.why, event.boot, event.by, event.gpus, delay=event.delay)
    job.progress = replace(progress, stop=stop)
    state.update_stopping(job)
    if event.at_once:
        return terminate(state, job, "stop")
    if progress.accepts_stop:
        return [do.RequestStop(job.id, job.attempt)]
    if (early := spec.early_signal) is not None:
        return [do.SignalAttempt(job.id, job.attempt, early.signal, True, early.to_script)]
    return terminate(state, job, "stop")


def on_preemption_cancelled(
    state: State, job: Job, event: e.PreemptionCancelled
) -> do.Instructions:
    """Withdraw a stop request, if the job has not stopped yet."""
    if job.progress.stop is None:
        return []
    job.progress = replace(job.progress, stop=None)
    state.update_stopping(job)
    return [do.WithdrawStop(job.id, job.attempt)] if job.progress.accepts_stop else []


def on_preemption_timed_out(state: State, job: Job, event: e.PreemptionTimedOut) -> do.Instructions:
    """Terminate a job that did not stop in time; if it is not requeueable, let it run on."""
    if job.state is not JobState.RUNNING:
        return []
    stop = job.progress.stop
    if event.has_saved or (stop is not None and state.spec(job).requeueable):
        return terminate(state, job, "stop")
    if stop is None:
        return []
    job.progress = replace(job.progress, stop=replace(stop, timed_out=True))
    state.pending.request_planning()
    return []


def on_estimate_exceeded(state: State, job: Job, event: e.EstimateExceeded) -> None:
    """Mark a job that takes far longer than expected, for users; its rank does not change."""
    if not job.finished:
        job.progress = replace(job.progress, overran=True)
