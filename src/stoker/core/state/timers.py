"""Timers: events that follow from the passing of time, and when the next one is due."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from stoker.core import events as e
from stoker.core.measurement.estimator import ESTIMATE_SLACK, epoch_seconds, profile_of, remaining
from stoker.core.model.job import Job, JobState
from stoker.core.model.spec import Spec
from stoker.core.placement.horizon import END_GRACE_SECONDS
from stoker.core.policies.ranking import UNMEASURED_SECONDS
from stoker.core.running.release_times import latest_end
from stoker.core.state.state import State

OVERRUN_WARNING_FACTOR = 2.0
"""A job that runs this many times its expected duration is reported as late."""
RUNNING = JobState.RUNNING
_NOT_COUNTING = (JobState.QUEUED, JobState.SUSPENDED, JobState.COMPLETING)


def due_events(state: State, at: float, boot: float) -> list[e.Event]:
    """Return the events of all timers due now. Limits use the boot clock."""
    events: list[e.Event] = [
        e.BeginTimeReached(at=at, job=id)
        for id in state.begin_timers.due(at)
        if state.jobs[id].state is JobState.PENDING and id not in state.pending
    ]
    events += [e.DeadlinePassed(at=at, job=id) for id in state.deadlines.due(at)]
    for job in [state.running[id] for id in state.limit_timers.due(boot)]:
        # A reservation moves to a later release, so more jobs may end before it.
        if latest_end_of(state, job) <= boot and state.uses_release_times():
            state.pending.request_planning()
        events += [event for moment, event in _job_timers(state, job, at, boot) if boot >= moment]
        arm_timers(state, job, boot)
    events += [event for moment, event in _node_end_timers(state, at, boot) if at >= moment]
    events += [event for moment, event in _reservation_timers(state, at, boot) if at >= moment]
    return events


def _job_timers(
    state: State, job: Job, at: float = 0.0, boot: float = -inf
) -> Iterator[tuple[float, e.Event]]:
    """Yield the timers of a running job: when each is due (boot clock; `inf`), and its event."""
    id, attempt = job.id, job.attempt
    end, warn = _limits(state, job)
    if boot < end:
        yield warn, e.TimeLimitNear(at=at, job=id, attempt=attempt)
    yield end, e.TimeLimitReached(at=at, job=id, attempt=attempt)
    for node, moment in _abandon_deadlines(state, job):
        yield moment, e.AttemptAbandoned(at=at, job=id, attempt=attempt, node=node)
    yield _estimate_deadline(state, job), e.EstimateExceeded(at=at, job=id)
    if id in state.preemptible:
        yield _stop_timeout(state, job), e.PreemptionTimedOut(at=at, job=id, attempt=attempt)


def arm_timers(state: State, job: Job, boot: float = -inf) -> None:
    """Set the release time and the next timer of a running job that changed."""
    end = latest_end_of(state, job, boot)
    state.release_times.set(job.id, min(end, _end_of_nodes(state, job)))
    moment = _next_time(state, job, end)
    if moment < state.limit_timers.time_of(job.id):
        state.limit_timers.set(job.id, moment)


def latest_end_of(state: State, job: Job, boot: float = -inf) -> float:
    """Return the latest end of a running attempt; infinite while it is suspended or queued.

    `boot`: a time at which it still runs, so that an estimated end is later.
    """
    if job.progress.stop is not None:
        return job.progress.stop.requested_boot
    spec = state.specs[job.spec]
    is_paused = job.state in (JobState.SUSPENDED, JobState.QUEUED)
    limit = None if is_paused else spec.limit
    if limit is None and job.state is JobState.RUNNING:
        return _estimated_end(state, job, spec, boot)
    return latest_end(job.started_boot, limit, job.slack)


def _estimated_end(state: State, job: Job, spec: Spec, now: float) -> float:
    """Return the estimated end of an attempt with measured epochs and no time limit."""
    at, boot = job.progress.epoch_started_at, job.started_boot
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


def _next_time(state: State, job: Job, end: float) -> float:
    """Return the time of the next timer of a job with this latest end; infinite: it has none."""
    moments = [moment for moment, _ in _job_timers(state, job)]
    if state.specs[job.spec].limit is None and job.progress.stop is None:
        moments.append(end)  # an estimate, which is made again then
    return min(moments)


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
    others = [*_node_end_timers(state), *_reservation_timers(state)]
    hours = state.limits.next_refresh if len(state.pending) else inf
    wall_time = min([state.memory.next_rebalance, hours, *(each for each, _ in others), *first])
    return wall_time, _first_time(state, boot)


def _estimate_deadline(state: State, job: Job) -> float:
    """Return when a job exceeds its declared or measured duration by far."""
    spec, started, progress = state.specs[job.spec], job.started_boot, job.progress
    training = spec.training
    if training is None or started is None or job.state is not RUNNING or progress.overran:
        return inf
    expected: float | None = spec.expected
    if expected is None and progress.epochs and training.epochs is not None:
        profile = profile_of(state.record.profiles, job, spec)
        if profile.has_several_models or profile.interference:
            return inf  # GPU model or co-located jobs may explain the delay
        epoch_time = epoch_seconds(state.cluster, job, spec, profile)
        expected = training.epochs * epoch_time if epoch_time is not None else None
    if expected is None:
        return inf
    left = max(OVERRUN_WARNING_FACTOR * expected - progress.previous_runtime, 0.0)
    return started + job.slack + left


def _stop_timeout(state: State, job: Job) -> float:
    """Return when a stop request times out."""
    spec, stop = state.specs[job.spec], job.progress.stop
    if stop is None or stop.timed_out or job.state is not RUNNING or _is_unreachable(state, job):
        return inf
    requested = stop.requested_boot
    if not job.progress.accepts_stop:
        return requested + spec.early_signal.seconds if spec.early_signal is not None else inf
    profile = profile_of(state.record.profiles, job, spec)
    epoch_time = epoch_seconds(state.cluster, job, spec, profile)
    return requested + (UNMEASURED_SECONDS if epoch_time is None else 2 * epoch_time + 60.0)


def _abandon_deadlines(state: State, job: Job) -> list[tuple[str, float]]:
    """Return the unreachable nodes of an attempt, and when its spec gives up each of them."""
    timeout = state.specs[job.spec].if_unreachable
    if timeout is None or not state.record.unreachable:
        return []
    nodes = ((node, state.record.unreachable.get(node)) for node in _nodes_in_use(job))
    return [
        (node, unreachable.boot_time + timeout)
        for node, unreachable in nodes
        if unreachable is not None and unreachable.boot_time is not None
    ]


def _limits(state: State, job: Job) -> tuple[float, float]:
    """Return when an attempt reaches its time limit, and when it is to be warned."""
    spec = state.specs[job.spec]
    if spec.limit is None or job.started_boot is None or job.state in _NOT_COUNTING:
        return inf, inf
    if _is_unreachable(state, job):
        return inf, inf  # it cannot be ended, and may have ended in time
    end = job.started_boot + spec.limit + job.slack
    early_signal = spec.early_signal
    return end, end - early_signal.seconds if early_signal and not job.warned else inf


def time_limit_end(state: State, job: Job) -> float | None:
    """Return when an attempt reaches its time limit, on the boot clock; None: it does not now."""
    end, _ = _limits(state, job)
    return end if end < inf else None


def _is_unreachable(state: State, job: Job) -> bool:
    """Whether all parts of an attempt that have not ended are on unreachable nodes."""
    unreachable = state.record.unreachable
    return bool(unreachable) and all(node in unreachable for node in _nodes_in_use(job))


def _nodes_in_use(job: Job) -> list[str]:
    """Return the nodes of the parts of an attempt that have not ended."""
    ended = {end.part for end in job.ends}
    return [part.node for rank, part in enumerate(job.parts) if rank not in ended]


# -- ends of nodes --------------------------------------------------------------------------


def _node_end_timers(
    state: State, at: float = 0.0, boot: float = 0.0
) -> Iterator[tuple[float, e.Event]]:
    """Yield stop requests and early signals before nodes end, and when each is due (wall clock).

    Only of jobs that save their work if they are asked. All others run until their node ends: they
    may be done by then.
    """
    if not state.cluster.node_ends:
        return
    for id, job in sorted(state.running.items()):  # the same order after a restart
        end, node = _first_end(state, job)
        if end == inf or job.state is not JobState.RUNNING:
            continue
        progress, early_signal = job.progress, state.spec(job).early_signal
        moment, why = end - END_GRACE_SECONDS, f"{node} ends soon"
        if id not in state.preemptible:
            if early_signal is not None and not job.warned:
                yield moment, e.TimeLimitNear(at=at, job=id, attempt=job.attempt)
        elif progress.stop is None and (early_signal is not None or progress.accepts_stop):
            yield (
                moment,
                e.PreemptionRequested(at=at, job=id, attempt=job.attempt, why=why, boot=boot),
            )


def _reservation_timers(
    state: State, at: float = 0.0, boot: float = 0.0
) -> Iterator[tuple[float, e.Event]]:
    """Yield the ends of advance reservations, and stop requests to jobs of others at their begin.

    Only of jobs that save their work if they are asked. All others run until they end.
    """
    for each in state.record.reservations.values():
        yield each.end, e.ReservationEnded(at=at, name=each.name)
        for id, job in sorted(state.preemptible.items()):
            if job.state is not JobState.RUNNING or job.progress.stop is not None:
                continue
            if each.admits(state.limits.keys(state.specs[job.spec])):
                continue
            if each.holds(job.parts):
                why = f"its GPUs are reserved ({each.name})"
                yield (
                    each.begin,
                    e.PreemptionRequested(at=at, job=id, attempt=job.attempt, why=why, boot=boot),
                )


def _end_of_nodes(state: State, job: Job) -> float:
    """Return when the first node of an attempt ends, on the boot clock; infinite if none does."""
    end, _ = _first_end(state, job)
    if end == inf or job.started_boot is None or job.started_at is None:
        return inf
    return end - job.started_at + job.started_boot


def _first_end(state: State, job: Job) -> tuple[float, str]:
    """Return the end and the name of the first node of an attempt that ends."""
    ends = state.cluster.node_ends
    return min(((ends.get(part.node, inf), part.node) for part in job.parts), default=(inf, ""))
