"""Measurements: job profiles, what an attempt leaves to the next one, GPU time and alarms."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.handlers.outcome import AttemptOutcome
from stoker.core.measurement import estimator
from stoker.core.measurement.estimator import gpu_share, held_since, training_stage
from stoker.core.measurement.gpu_memory import after_oom, gpus_of
from stoker.core.model.alarm import OVER_REQUESTED
from stoker.core.model.job import FAILED_STATES, NO_USAGE, GpuUsage, Job, JobState, Progress
from stoker.core.model.profile import EMPTY_PROFILE, JobProfile
from stoker.core.model.resources import GPU
from stoker.core.model.spec import Spec
from stoker.core.state.eligibility import requeue_all, update_eligibility
from stoker.core.state.reranking import rerank_victim
from stoker.core.state.state import State
from stoker.core.state.timers import arm_timers

MAX_PROFILES = 256
"""Number of profiles that are kept; the one updated longest ago is dropped first."""
MAX_KEPT = 24
"""Ended attempts kept per job, and epoch times (one per training stage and number of GPUs):
bounded, since they are part of its row."""


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
        others = co_located(state, job) if progress.shared_gpu else []
        if others and exclusive is not None:  # a shared GPU tells nothing of exclusive speed
            seconds = exclusive.epoch
            if len(others) == 1 and event.seconds > 0:  # with several, the cause is unknown
                other = estimator.profile_key(others[0], state.spec(others[0]))
                key = estimator.colocation_key(model, other)
                profile = estimator.with_interference(profile, key, seconds / event.seconds)
        else:
            seconds = event.seconds
            profile = estimator.with_epoch_time(profile, gpus, model, seconds, event.step)
        epoch_times = _own_epoch_times(job, progress, spec, gpus, model, seconds)
        is_first = not (progress.epoch_time or before.epoch_times or spec.expected)
        job.progress = replace(
            progress,
            epoch_time=(gpus, model, seconds),
            epoch_times=epoch_times,
            started_unmeasured=progress.started_unmeasured or is_first,
        )
    if event.warmup is not None:
        profile = replace(profile, warmup=event.warmup)
    if progress.peak is not None and progress.has_finished_epoch:
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
    return (*others[1 - MAX_KEPT :], (*key, seconds))


def on_profile_imported(state: State, event: e.ProfileImported) -> None:
    """Add measurements from elsewhere to a profile, like own ones."""
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
    requeue_all(state, None, event.at)
    state.pending.request_planning()


def held_removed_devices(state: State, job: Job) -> bool:
    """Whether a job holds devices that its node no longer reports."""
    nodes = state.cluster.nodes
    return any(
        nodes[part.node].device(allocation).removed
        for part in job.parts
        for allocation in part.allocations
    )


def _at_most_all(state: State, job: Job, memory: int) -> int:
    """Return the used memory, limited so that with its margin it still fits the GPU it ran on."""
    sizes = [device.facts.memory for device in gpus_of(state.cluster, job.placement)]
    return min([memory, *(estimator.without_margin(total) for total in sizes if total)])


def _store_profile(state: State, name: str, profile: JobProfile, at: float) -> None:
    """Store a profile; rank its jobs again if their estimates or memory reservations change."""
    profiles = state.record.profiles
    before = profiles.pop(name, EMPTY_PROFILE)
    profiles[name] = profile
    state.changes.record()
    changed = []
    if len(profiles) > MAX_PROFILES:
        changed.append(next(iter(profiles)))
        del profiles[changed[0]]
    state.update_model_profiles()
    if before.peak != profile.peak or not profile.ranks_alike(before):
        changed.append(name)
    for id in [id for key in changed for id in state.jobs_by_profile.get(key, ())]:
        job = state.jobs[id]
        if id in state.pending:
            update_eligibility(state, job, at)
        rerank_victim(state, job, at)
        if id in state.running:
            arm_timers(state, job)


def record_memory(state: State, job: Job, memory: int, at: float) -> None:
    """Record the measured GPU memory of a job in its profile.

    Before the first epoch ends, an attempt does not use all the memory it needs.
    """
    if held_removed_devices(state, job):
        return
    peak = _peak_of(state, job)
    if job.progress.has_finished_epoch or peak:
        _set_peak(state, job, max(peak, _at_most_all(state, job, memory)), at)


def _peak_of(state: State, job: Job) -> int:
    return estimator.profile_of(state.record.profiles, job, state.spec(job)).peak or 0


def _set_peak(state: State, job: Job, peak: int, at: float) -> None:
    """Set the memory that jobs of a profile are known to need."""
    name = estimator.profile_key(job, state.spec(job))
    profile = state.record.profiles.get(name, EMPTY_PROFILE)
    if peak != (profile.peak or 0):
        _store_profile(state, name, replace(profile, peak=peak), at)


def oom_outcome(state: State, job: Job, at: float) -> AttemptOutcome | None:
    """Return the outcome of a shared job that ran out of GPU memory, if it may be retried."""
    others = co_located(state, job)
    recovery = after_oom(job, state.spec(job), state.cluster, others)
    if recovery is None:
        return None
    job.progress = recovery.progress
    if recovery.learned is not None:
        needed = estimator.without_margin(recovery.learned)
        _set_peak(state, job, max(needed, _peak_of(state, job)), at)
    return AttemptOutcome(JobState.OUT_OF_MEMORY, recovery.words, again=True, preempted=True)


def close_attempt(state: State, job: Job, at: float, preempted: bool) -> None:
    """Update the progress of a job at the end of an attempt, and clear its stop request."""
    progress = job.progress
    known = _peak_of(state, job)
    if progress.has_finished_epoch and progress.peak and progress.peak < known:
        _set_peak(state, job, (known + progress.peak) // 2, at)  # it needed less: halfway to that
    runtime = max(at - job.started_at - job.slack, 0.0) if job.started_at is not None else 0.0
    stop = progress.stop
    is_growth = stop is not None and stop.resize_to is not None and stop.preemptor is None
    job.progress = replace(
        progress,
        accepts_stop=False,
        stop=None,
        epochs_at_start=progress.epochs,
        started_unmeasured=False,
        previous_runtime=progress.previous_runtime + runtime,
        epoch_started_at=None,
        exceeded_reservation=False,
        shared_gpu=False,
        peak=None if preempted else progress.peak,
        preemptions=progress.preemptions + (stop is not None and preempted and not is_growth),
        gpus=stop.resize_to if preempted and stop is not None and stop.resize_to else progress.gpus,
    )


def discard_unsaved(job: Job) -> None:
    """Reset the epochs of a job to those at the start of an attempt on a lost node."""
    if job.progress.epochs > job.progress.epochs_at_start:
        job.progress = replace(job.progress, epochs=job.progress.epochs_at_start)


def co_located(state: State, job: Job) -> list[Job]:
    """Return the running jobs that share a GPU with a job."""
    gpus = _gpus(job)
    return [
        other
        for other in state.running.values()
        if other is not job and not gpus.isdisjoint(_gpus(other))
    ]


def _gpus(job: Job) -> set[tuple[str, str]]:
    return {(part.node, name) for part in job.parts for name in part.names(GPU)}


def mark_shared(state: State, job: Job) -> None:
    """Mark a job and those on the same GPUs as sharing."""
    others = co_located(state, job)
    for sharer in (job, *others) if others else ():
        if not sharer.progress.shared_gpu:
            sharer.progress = replace(sharer.progress, shared_gpu=True)
            state.changes.job(sharer.id)


# -- GPU time and alarms --------------------------------------------------------------------


def on_usage_measured(state: State, job: Job, event: e.UsageMeasured) -> None:
    """Record what was measured of the GPUs of an attempt so far."""
    job.measured = replace(
        job.measured,
        measured=event.measured,
        busy=event.busy,
        energy=event.energy,
        wasted=event.wasted,
    )


def usage_until(state: State, job: Job, at: float) -> GpuUsage:
    """Return the usage of the current attempt of a job until now."""
    since = held_since(state.cluster, job)
    if job.placement is None or since is None:
        return NO_USAGE
    share = gpu_share(state.cluster, job.placement)
    if not share:
        return GpuUsage(cpu=job.measured.cpu, rss=job.measured.rss)
    held = round(share * max(at - since, 0.0), 3)
    return replace(job.measured, held=held)


def end_usage(state: State, job: Job, at: float, outcome: AttemptOutcome | None) -> GpuUsage | None:
    """Return the usage of an attempt that ends now, None if nothing is known of it.

    Its GPU time is added to what counts for limits of GPU-hours.
    """
    usage = usage_until(state, job, at)
    if state.limits.charge(job, at):
        state.changes.record()
    if not (usage.held or usage.rss):
        return None
    is_failure = (
        outcome is not None
        and outcome.state in FAILED_STATES
        and not (outcome.preempted or outcome.requeued or job.progress.has_finished_epoch)
    )
    return replace(usage, wasted=usage.held) if is_failure else usage


def on_alarm_raised(state: State, event: e.AlarmRaised) -> None:
    """Note an alarm; advice stays with its job."""
    alarm = event.alarm
    job = state.jobs.get(alarm.job) if alarm.job is not None else None
    if alarm.job is not None and (job is None or job.attempt != alarm.attempt or not job.holding):
        return
    if job is not None and alarm.kind == OVER_REQUESTED:
        job.advice = alarm.text
        state.changes.job(job.id)
        return
    state.record.alarms[alarm.key] = alarm


def on_alarm_cleared(state: State, event: e.AlarmCleared) -> None:
    """Note that an alarm is not true any more."""
    state.record.alarms.pop(event.alarm.key, None)


def clear_job_alarms(state: State, job: Job) -> None:
    """Remove the alarms of an attempt that ends."""
    ended = [key for key, alarm in state.record.alarms.items() if alarm.job == job.id]
    for key in ended:
        del state.record.alarms[key]
    if ended:
        state.changes.record()
