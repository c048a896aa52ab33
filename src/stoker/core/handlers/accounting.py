"""GPU time of attempts (held, measured and wasted), and alarms about them and about GPUs."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.handlers.outcome import AttemptOutcome
from stoker.core.measurement.estimator import allocated_gpus
from stoker.core.model.alarm import OVER_REQUESTED
from stoker.core.model.job import FAILED_STATES, NO_USAGE, GpuUsage, Job
from stoker.core.model.resources import Placement
from stoker.core.model.units import THOUSAND
from stoker.core.state.state import State


def on_usage_measured(state: State, job: Job, event: e.UsageMeasured) -> None:
    """Record what was measured of the GPUs of an attempt so far."""
    job.measured = replace(
        job.measured, measured=event.measured, busy=event.busy, energy=event.energy
    )


def gpu_share(state: State, placement: Placement) -> float:
    """Return how many GPUs a placement holds; of a GPU shared by memory, its part of the memory."""
    total = 0.0
    for take, device in allocated_gpus(state.cluster, placement):
        memory = device.facts.memory if device is not None else None
        if take.is_shared:
            total += min(take.memory / memory, 1.0) if memory else 1.0
        else:
            total += take.amount / THOUSAND
    return total


def usage_until(state: State, job: Job, at: float) -> GpuUsage:
    """Return the usage of the current attempt of a job until now."""
    since = job.started_at if state.is_delegated(job) else job.allocated_at or job.started_at
    if job.placement is None or since is None:
        return NO_USAGE
    share = gpu_share(state, job.placement)
    if not share:
        return GpuUsage(cpu=job.measured.cpu, rss=job.measured.rss)
    held = round(share * max(at - since, 0.0), 3)
    return replace(job.measured, held=held)


def attempt_usage(
    state: State, job: Job, at: float, outcome: AttemptOutcome | None
) -> GpuUsage | None:
    """Return the usage of an attempt that ends now, None if nothing is known of it."""
    usage = usage_until(state, job, at)
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
