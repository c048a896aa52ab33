"""Timers: events that follow from the passing of time, and when the next one is due."""

from __future__ import annotations

from math import inf

from stoker.core.events import (
    AttemptAbandoned,
    BeginTimeReached,
    DeadlinePassed,
    EstimateExceeded,
    Event,
    PreemptionTimedOut,
    TimeLimitNear,
    TimeLimitReached,
)
from stoker.core.measurement.estimator import NO_PROGRESS, epoch_seconds, profile_of, remaining
from stoker.core.model.job import Job
from stoker.core.model.lifecycle import JobState
from stoker.core.model.spec import Spec
from stoker.core.running.release_times import latest_end
from stoker.core.state.state import State

OVERRUN_WARNING_FACTOR = 2.0
"""A job that runs this many times its expected duration is reported as late."""
ESTIMATE_SLACK = 1.2
"""Factor on an estimated remaining time, so that it is seldom exceeded."""
UNMEASURED_SECONDS = 600.0
"""Seconds until a stop request times out if the epoch time of the job is unknown."""
RUNNING = JobState.RUNNING
_NOT_COUNTING = (JobState.QUEUED, JobState.SUSPENDED, JobState.COMPLETING)


def due_events(state: State, at: float, boot: float) -> list[Event]:
    """Return the events of all timers due now. Limits use the boot clock."""
    events: list[Event] = [
        BeginTimeReached(at=at, job=id)
        for id in state.begin_timers.due(at)
        if state.jobs[id].state is JobState.PENDING and id not in state.pending
    ]
    for id in state.deadlines.due(at):
        set_deadline(state, state.jobs[id])  # if it started, the deadline is that of its end
        if state.deadlines.time_of(id) <= at:
            state.deadlines.cancel(id)
            events.append(DeadlinePassed(at=at, job=id))
    for job in _due_jobs(state, boot):
        end, warn = _limits(state, job)
        if end is not None and boot >= end:
            events.append(TimeLimitReached(at=at, job=job.id, attempt=job.attempt))
        elif warn is not None and boot >= warn:
            events.append(TimeLimitNear(at=at, job=job.id, attempt=job.attempt))
        events += [
            AttemptAbandoned(at=at, job=job.id, attempt=job.attempt, node=node)
            for node, moment in _abandon_deadlines(state, job)
            if boot >= moment
        ]
        overrun_at = _estimate_deadline(state, job)
        if overrun_at is not None and boot >= overrun_at:
            events.append(EstimateExceeded(at=at, job=job.id))
        stop_timeout = _stop_timeout(state, job) if job.id in state.preemptible else None
        if stop_timeout is not None and boot >= stop_timeout:
            events.append(PreemptionTimedOut(at=at, job=job.id, attempt=job.attempt))
    return events


def arm_timers(state: State, job: Job, boot: float = -inf) -> None:
    """Set the release time and the next timer of a running job that changed."""
    end = latest_end_of(state, job, boot)
    state.release_times.set(job.id, end)
    moment = _next_time(state, job, end)
    if moment is not None and moment < state.limit_timers.time_of(job.id):
        state.limit_timers.set(job.id, moment)


def latest_end_of(state: State, job: Job, boot: float = -inf) -> float:
    """Return the latest end of a running attempt; infinite while it is suspended or queued.

    `boot`: a time at which it still runs, so that an estimated end is later.
    """
    if job.progress is not None and job.progress.stop is not None:
        return job.progress.stop.requested_boot
    spec = state.specs[job.spec]
    is_paused = job.state in (JobState.SUSPENDED, JobState.QUEUED)
    limit = None if is_paused else spec.limit
    if limit is None and job.progress is not None and job.state is JobState.RUNNING:
        return _estimated_end(state, job, spec, boot)
    return latest_end(job.started_boot, limit, job.slack)


def _estimated_end(state: State, job: Job, spec: Spec, now: float) -> float:
    """Return the estimated end of an attempt with measured epochs and no time limit."""
    at, boot = job.progress.epoch_started_at if job.progress else None, job.started_boot
    if at is None or boot is None or job.started_at is None:
        return inf
    left = remaining(state.record.profiles, state.cluster, job, spec, at)
    if left is None:
        return inf
    end = boot + (at - job.started_at) + left * ESTIMATE_SLACK
    extension = max(left * ESTIMATE_SLACK / 16, 60.0)
    while end <= now:  # it is late: return a time in the future
        end, extension = end + extension, extension * 2
    return end


def set_deadline(state: State, job: Job) -> None:
    """Set the timer of a job's deadline."""
    deadline = None if job.finished else state.deadline(job)
    state.deadlines.set(job.id, inf if deadline is None else deadline)


def _due_jobs(state: State, boot: float) -> list[Job]:
    """Return the running jobs that have a timer due, and set their next timers."""
    due = [state.running[id] for id in state.limit_timers.due(boot)]
    for job in due:
        # A reservation moves to a later release, so more jobs may end before it.
        is_late = latest_end_of(state, job) <= boot
        if is_late and state.uses_release_times():
            state.pending.request_planning()
        arm_timers(state, job, boot)
    return due


def _first_time(state: State, boot: float) -> float:
    """Return the time of the next timer of a running job; infinite if there is none."""
    while (first := state.limit_timers.next_time()) is not None:
        moment, id = first
        job = state.running[id]
        if _next_time(state, job, latest_end_of(state, job, boot)) == moment:
            return moment
        state.limit_timers.cancel(id)  # postponed since it was set
        arm_timers(state, job, boot)
    return inf


def _next_time(state: State, job: Job, end: float) -> float | None:
    """Return the time of the next timer of a job with this latest end."""
    moments = [*_limits(state, job), _estimate_deadline(state, job), _likely_end(state, job, end)]
    moments += [moment for _, moment in _abandon_deadlines(state, job)]
    if job.id in state.preemptible:
        moments.append(_stop_timeout(state, job))
    return min([moment for moment in moments if moment is not None], default=None)


def next_wakeup(state: State, at: float, boot: float) -> float | None:
    """Return the seconds until the next timer is due; None if there is none."""
    wall_time, boot_time = next_timers(state, boot)
    wait = min(wall_time - at, boot_time - boot)
    return max(wait, 0.0) if wait < inf else None


def next_timers(state: State, boot: float) -> tuple[float, float]:
    """Return the next times on the wall clock and on the boot clock; infinite if there is none."""
    timers = [state.begin_timers, state.deadlines]
    if len(state.pending):
        timers.append(state.rank_timers)
    first = [timer[0] for each in timers if (timer := each.next_time()) is not None]
    return min([state.memory.next_rebalance, *first]), _first_time(state, boot)


def _estimate_deadline(state: State, job: Job) -> float | None:
    """Return when a job exceeds its declared or measured duration by far."""
    spec, started, progress = state.specs[job.spec], job.started_boot, job.progress or NO_PROGRESS
    training = spec.training
    if training is None or started is None or job.state is not RUNNING or progress.overran:
        return None
    expected: float | None = training.expected
    if expected is None and progress.epochs and training.epochs is not None:
        profile = profile_of(state.record.profiles, job, spec)
        if profile.has_several_models or profile.interference:
            return None  # GPU model or co-located jobs may explain the delay
        epoch_time = epoch_seconds(state.cluster, job, spec, profile)
        expected = training.epochs * epoch_time if epoch_time is not None else None
    if expected is None:
        return None
    return (
        started
        + job.slack
        + max(OVERRUN_WARNING_FACTOR * expected - progress.previous_runtime, 0.0)
    )


def _likely_end(state: State, job: Job, end: float) -> float | None:
    """Return the estimated end of a job without a time limit, at which it is estimated again."""
    limited = state.specs[job.spec].limit is not None
    stopping = job.progress is not None and job.progress.stop is not None
    return None if limited or stopping or end == inf else end


def _stop_timeout(state: State, job: Job) -> float | None:
    """Return when a stop request times out."""
    progress = job.progress
    if progress is None or progress.stop is None or job.state is not RUNNING:
        return None
    if progress.stop.timed_out or _is_unreachable(state, job):
        return None
    spec, requested = state.specs[job.spec], progress.stop.requested_boot
    if not progress.accepts_stop:
        early_signal = spec.early_signal
        return None if early_signal is None else requested + early_signal.seconds
    profile = profile_of(state.record.profiles, job, spec)
    epoch_time = epoch_seconds(state.cluster, job, spec, profile)
    return requested + (UNMEASURED_SECONDS if epoch_time is None else 2 * epoch_time + 60.0)


def _abandon_deadlines(state: State, job: Job) -> list[tuple[str, float]]:
    """Return the unreachable nodes of an attempt, and when its spec gives up each of them."""
    timeout = state.specs[job.spec].if_unreachable
    if timeout is None or not state.record.unreachable or job.placement is None:
        return []
    ended = {end.part for end in job.ends}
    deadlines = []
    for number, part in enumerate(job.placement.parts):
        unreachable = state.record.unreachable.get(part.node)
        if unreachable is not None and unreachable.boot_time is not None and number not in ended:
            deadlines.append((part.node, unreachable.boot_time + timeout))
    return deadlines


def _limits(state: State, job: Job) -> tuple[float | None, float | None]:
    """Return when an attempt reaches its time limit, and when it is to be warned."""
    spec = state.specs[job.spec]
    if spec.limit is None or job.started_boot is None or job.state in _NOT_COUNTING:
        return None, None
    if _is_unreachable(state, job):
        return None, None  # it cannot be ended, and may have ended in time
    end = job.started_boot + spec.limit + job.slack
    early_signal = spec.early_signal
    return end, end - early_signal.seconds if early_signal and not job.warned else None


def _is_unreachable(state: State, job: Job) -> bool:
    """Whether all parts of an attempt that have not ended are on unreachable nodes."""
    if not state.record.unreachable:
        return False
    ended = {end.part for end in job.ends}
    parts = job.placement.parts if job.placement is not None else ()
    return all(
        part.node in state.record.unreachable or number in ended
        for number, part in enumerate(parts)
    )
