"""Measurements of training jobs: job profiles, and what an attempt leaves to the next one."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.handlers.outcome import AttemptOutcome
from stoker.core.measurement import estimator
from stoker.core.measurement.estimator import training_stage
from stoker.core.measurement.gpu_memory import after_oom
from stoker.core.model.job import Job, Progress, StopRequest
from stoker.core.model.lifecycle import JobState
from stoker.core.model.profile import EMPTY_PROFILE, EpochTime, JobProfile
from stoker.core.model.resources import GPU
from stoker.core.model.spec import Spec
from stoker.core.state.eligibility import update_eligibility
from stoker.core.state.reranking import check_preemption_after_rerank, rerank_running
from stoker.core.state.state import State
from stoker.core.state.timers import arm_timers

MAX_EPOCH_TIMES = 24
"""Epoch times kept per elastic job, one per training stage and number of GPUs."""


def record_epochs(state: State, job: Job, event: e.EpochsCounted) -> None:
    """Record epoch time and GPU memory of a job in its profile."""
    if held_removed_devices(state, job):
        return
    spec, progress = state.spec(job), job.progress
    name = estimator.profile_key(job, spec)
    profile = before = state.record.profiles.get(name, EMPTY_PROFILE)
    if event.seconds is not None and job.placement is not None:
        gpus, model = estimator.hardware(state.cluster, job.placement)
        exclusive = profile.epoch_time_at(gpus, model)
        others = co_located(state, job) if progress is not None and progress.shared_gpu else []
        if others and exclusive is not None:  # a shared GPU tells nothing of exclusive speed
            seconds = exclusive.epoch
            profile = _record_interference(state, profile, model, others, event.seconds, exclusive)
        else:
            seconds = event.seconds
            profile = estimator.with_epoch_time(profile, gpus, model, seconds, event.step)
        if progress is not None:
            epoch_times = _own_epoch_times(job, progress, spec, gpus, model, seconds)
            job.progress = replace(
                progress, epoch_time=(gpus, model, seconds), epoch_times=epoch_times
            )
            progress = job.progress
    if event.warmup is not None:
        profile = replace(profile, warmup=event.warmup)
    if (
        progress is not None
        and progress.peak is not None
        and progress.epochs > progress.epochs_at_start
    ):
        peak = _at_most_all(state, job, progress.peak)
        profile = replace(profile, peak=max(profile.peak or 0, peak))
    if profile != before:
        _store_profile(state, name, profile, event.at)


def _own_epoch_times(
    job: Job, progress: Progress, spec: Spec, gpus: int, model: str, seconds: float
) -> tuple[tuple[int, int, float], ...]:
    """Return the latest epoch times of an elastic job by training stage and number of GPUs."""
    gpu_request, epochs = spec.request.gpus, estimator.epochs_of(job, spec)
    if gpu_request is None or gpu_request.max_amount is None or not epochs:
        return ()
    key = (training_stage(progress.epochs / epochs), gpus)
    same_model = progress.epoch_time is None or progress.epoch_time[1] == model
    others = [measured for measured in progress.epoch_times if same_model and measured[:2] != key]
    return (*others[1 - MAX_EPOCH_TIMES :], (*key, seconds))


def _record_interference(
    state: State, profile: JobProfile, model: str, others: list[Job], seconds: float,
    exclusive: EpochTime,
) -> JobProfile:  # fmt: skip
    """Record the slowdown by a co-located job; with several, the cause is unknown."""
    if len(others) > 1 or seconds <= 0:
        return profile
    other = estimator.profile_key(others[0], state.spec(others[0]))
    return estimator.with_interference(
        profile, estimator.colocation_key(model, other), exclusive.epoch / seconds
    )


def import_profile(state: State, event: e.ProfileImported) -> None:
    """Add imported measurements to a profile, like own ones."""
    profile = state.record.profiles.get(event.profile, EMPTY_PROFILE)
    for epoch_time in event.epoch_times:
        profile = estimator.with_epoch_time(
            profile, epoch_time.gpus, epoch_time.model, epoch_time.epoch, epoch_time.step
        )
    for colocation, speed in event.interference.items():
        profile = estimator.with_interference(profile, colocation, speed)
    if event.warmup is not None:
        profile = replace(profile, warmup=event.warmup)
    _store_profile(state, event.profile, profile, event.at)


def held_removed_devices(state: State, job: Job) -> bool:
    """Whether a job holds devices that its node no longer reports."""
    for part in job.placement.parts if job.placement is not None else ():
        devices = state.cluster.nodes[part.node].by_name
        for allocation in part.allocations:
            if devices[allocation.type, allocation.device].removed:
                return True
    return False


def _at_most_all(state: State, job: Job, memory: int) -> int:
    """Return the used memory, limited so that with its margin it still fits the GPU it ran on."""
    for part in job.placement.parts if job.placement is not None else ():
        for name in part.names(GPU):
            total = state.cluster.nodes[part.node].by_name[GPU, name].facts.memory
            if total:
                usable = min(
                    int(total / (1 + estimator.MEMORY_MARGIN)),
                    total - estimator.MIN_MEMORY_MARGIN_MIB,
                )
                memory = min(memory, max(usable, 0))
    return memory


def _store_profile(state: State, name: str, profile: JobProfile, at: float) -> None:
    """Store a profile; rank its jobs again if their estimates or memory reservations change."""
    before = state.record.profiles.get(name, EMPTY_PROFILE)
    evicted = estimator.store_profile(state.record.profiles, name, profile)
    state.changes.record()
    if state.has_model_profiles or profile.interference or profile.has_several_models:
        state.has_model_profiles = None
    changed = [key for key, _ in evicted]
    if before.peak != profile.peak or not profile.ranks_alike(before):
        changed.append(name)
    for id in [id for key in changed for id in state.jobs_by_profile.get(key, ())]:
        _apply_profile(state, state.jobs[id], at)


def _apply_profile(state: State, job: Job, at: float) -> None:
    """Compute again what depends on the profile of a job: request, rank and timers."""
    if job.id in state.pending:
        update_eligibility(state, job, at)
    if job.id in state.preemptible:
        rerank_running(state, job, at)
        check_preemption_after_rerank(state, job)
    if job.id in state.running:
        arm_timers(state, job)


def record_memory(state: State, job: Job, memory: int, at: float) -> None:
    """Record the measured GPU memory of a job in its profile.

    Before the first epoch ends, an attempt does not use all the memory it needs.
    """
    if held_removed_devices(state, job):
        return
    progress, name = job.progress, estimator.profile_key(job, state.spec(job))
    profile = state.record.profiles.get(name)
    past_first_epoch = progress is not None and progress.epochs > progress.epochs_at_start
    if profile is not None and (past_first_epoch or profile.peak is not None):
        peak = max(profile.peak or 0, _at_most_all(state, job, memory))
        if peak != profile.peak:
            _store_profile(state, name, replace(profile, peak=peak), at)


def record_oom_need(state: State, job: Job, memory: int, at: float) -> None:
    """Raise the memory of a profile after a job ran out of it."""
    name = estimator.profile_key(job, state.spec(job))
    profile = state.record.profiles.get(name, EMPTY_PROFILE)
    peak = int(memory / (1 + estimator.MEMORY_MARGIN))
    if peak > (profile.peak or 0):
        _store_profile(state, name, replace(profile, peak=peak), at)


def oom_outcome(state: State, job: Job, at: float) -> AttemptOutcome | None:
    """Return the outcome of a shared job that ran out of GPU memory, if it may be retried."""
    others = co_located(state, job)
    recovery = after_oom(job, state.spec(job), state.cluster, others)
    if recovery is None:
        return None
    job.progress = recovery.progress
    if recovery.learned is not None:
        record_oom_need(state, job, recovery.learned, at)
    return AttemptOutcome(JobState.OUT_OF_MEMORY, recovery.words, again=True, preempted=True)


def close_attempt(state: State, job: Job, at: float, preempted: bool) -> None:
    """Update the progress of a job at the end of an attempt, and clear its stop request."""
    progress = job.progress
    if progress is None:
        return
    if progress.peak and progress.epochs > progress.epochs_at_start:
        _record_need(state, job, progress.peak, at)
    runtime = max(at - job.started_at - job.slack, 0.0) if job.started_at is not None else 0.0
    stop = progress.stop
    job.progress = replace(
        progress,
        accepts_stop=False,
        stop=None,
        epochs_at_start=progress.epochs,
        previous_runtime=progress.previous_runtime + runtime,
        epoch_started_at=None,
        exceeded_reservation=False,
        shared_gpu=False,
        peak=None if preempted else progress.peak,
        preemptions=progress.preemptions
        + (stop is not None and preempted and not _is_growth(stop)),
        gpus=stop.resize_to if preempted and stop is not None and stop.resize_to else progress.gpus,
    )


def _record_need(state: State, job: Job, memory: int, at: float) -> None:
    """Lower the memory of a profile halfway to that of an attempt that needed less."""
    name = estimator.profile_key(job, state.spec(job))
    profile = state.record.profiles.get(name)
    if profile is not None and profile.peak is not None and 0 < memory < profile.peak:
        _store_profile(state, name, replace(profile, peak=(profile.peak + memory) // 2), at)


def discard_unsaved(job: Job) -> None:
    """Reset the epochs of a job to those at the start of an attempt on a lost node."""
    if job.progress is not None:
        job.progress = replace(job.progress, epochs=job.progress.epochs_at_start)


def _is_growth(stop: StopRequest) -> bool:
    """Whether a stop request lets an elastic job resume with more GPUs."""
    return stop.resize_to is not None and stop.preemptor is None


def co_located(state: State, job: Job) -> list[Job]:
    """Return the running jobs that share a GPU with a job."""
    gpus = _gpus(job)
    return [
        other
        for other in state.running.values()
        if other is not job and not gpus.isdisjoint(_gpus(other))
    ]


def _gpus(job: Job) -> set[tuple[str, str]]:
    parts = job.placement.parts if job.placement is not None else ()
    return {(part.node, name) for part in parts for name in part.names(GPU)}


def mark_shared(state: State, job: Job) -> None:
    """Mark a job and those on the same GPUs as sharing."""
    others = co_located(state, job)
    for sharer in (job, *others) if others else ():
        if sharer.progress is None or not sharer.progress.shared_gpu:
            sharer.progress = replace(sharer.progress or Progress(), shared_gpu=True)
            state.changes.job(sharer.id)
