"""What the passing of time brings about, as facts."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf

from stoker.core.estimate import NO_PROGRESS, epoch_seconds, known
from stoker.core.events import (
    AttemptAbandoned,
    DeadlinePassed,
    EstimateExceeded,
    Event,
    StopOverdue,
    TimeLimitNear,
    TimeLimitReached,
    WaitOver,
)
from stoker.core.job import Job
from stoker.core.lifecycle import JobState
from stoker.core.state import State

FAR_OVER = 2.0
"""A job that runs this many times its expected duration is reported as late."""
UNMEASURED = 600.0
"""Seconds that a job has to come to its next checkpoint when nobody knows its epochs."""
RUNNING = JobState.RUNNING
_NOT_COUNTING = (JobState.QUEUED, JobState.SUSPENDED, JobState.COMPLETING)


def due(state: State, at: float, boot: float) -> list[Event]:
    """The facts that the clock has brought by now. Limits go by the boot clock."""
    facts: list[Event] = []
    while state.alarms and state.alarms[0][0] <= at:
        _, id = heappop(state.alarms)
        job = state.jobs.get(id)
        if job is not None and job.state is JobState.PENDING and id not in state.line:
            facts.append(WaitOver(at=at, job=id))
    while state.deadlines and state.deadlines[0][0] <= at:
        _, id = heappop(state.deadlines)
        job = state.jobs.get(id)
        deadline = state.deadline(job) if job and not job.finished else None
        if deadline is not None and deadline > at:  # it has begun, so it has until its end
            heappush(state.deadlines, (deadline, id))
        elif deadline is not None:
            facts.append(DeadlinePassed(at=at, job=id))
    for job in _to_look_at(state, boot):
        end, warn = _limits(state, job)
        if end is not None and boot >= end:
            facts.append(TimeLimitReached(at=at, job=job.id, attempt=job.attempt))
        elif warn is not None and boot >= warn:
            facts.append(TimeLimitNear(at=at, job=job.id, attempt=job.attempt))
        facts += [
            AttemptAbandoned(at=at, job=job.id, attempt=job.attempt, node=node)
            for node, moment in _given_up(state, job)
            if boot >= moment
        ]
        too_long = _too_long(state, job)
        if too_long is not None and boot >= too_long:
            facts.append(EstimateExceeded(at=at, job=job.id))
        patience = _patience(state, job) if job.id in state.stoppable else None
        if patience is not None and boot >= patience:
            facts.append(StopOverdue(at=at, job=job.id, attempt=job.attempt))
    return facts


def watch(state: State, job: Job, boot: float = -inf) -> None:
    """Note when the clock has something to say about a running job that has changed."""
    end = state.latest_end(job, boot)
    state.ending.put(job.id, end)
    moment = _next_moment(state, job, end)
    if moment is not None and moment < state.watches.of(job.id):
        state.watches.put(job.id, moment)


def _to_look_at(state: State, boot: float) -> list[Job]:
    """The running jobs about which the clock may have something to say now.

    Where machines do not answer, all of them: nobody counts the time there.
    """
    found = [state.running[id] for id in state.watches.due(boot)]
    for job in found:
        if state.latest_end(job) <= boot:  # those behind a reservation may fit before a later one
            state.line.stirred |= state.policies.ends_matter(state.line.queues)
        watch(state, job, boot)
    return list(state.running.values()) if state.rest.away else found


def _first_moment(state: State, boot: float) -> float | None:
    """When the clock next has something to say about somebody who runs."""
    while (first := state.watches.first()) is not None:
        moment, id = first
        job = state.running[id]
        if _next_moment(state, job, state.latest_end(job, boot)) == moment:
            return moment
        state.watches.drop(id)  # what was noted has been put off since
        watch(state, job, boot)
    return None


def _next_moment(state: State, job: Job, end: float) -> float | None:
    """When the clock has something to say about a job that is over at the latest at that time."""
    moments = [*_limits(state, job), _too_long(state, job), _likely_end(state, job, end)]
    if state.rest.away:
        moments += [moment for _, moment in _given_up(state, job)]
    if job.id in state.stoppable:
        moments.append(_patience(state, job))
    return min([moment for moment in moments if moment is not None], default=None)


def seconds_until_due(state: State, at: float, boot: float) -> float | None:
    """How long until `due` has something to say; None when only events can change that."""
    waits = []
    if state.alarms:
        waits.append(state.alarms[0][0] - at)
    if state.deadlines:
        waits.append(state.deadlines[0][0] - at)
    if state.rest.away:
        running = state.running.values()
        found = (_next_moment(state, job, state.latest_end(job, boot)) for job in running)
        waits += [moment - boot for moment in found if moment is not None]
    elif (moment := _first_moment(state, boot)) is not None:
        waits.append(moment - boot)
    if len(state.line) and (drift := state.drift.first()) is not None:
        waits.append(drift[0] - at)
    if state.deal_at < inf:
        waits.append(state.deal_at - at)
    return max(min(waits), 0.0) if waits else None


def _too_long(state: State, job: Job) -> float | None:
    """When a job has taken far longer than it said, or than its epochs let expect."""
    spec, begun, progress = state.specs[job.spec], job.started_boot, job.progress or NO_PROGRESS
    training = spec.training
    if training is None or begun is None or job.state is not RUNNING or progress.overran:
        return None
    said: float | None = training.expected
    if said is None and progress.epochs and training.epochs is not None:
        family = known(state.rest.families, job, spec)
        if family.compared or family.beside:
            return None  # it was slow where it was before, or beside others: not its fault
        epoch = epoch_seconds(state.cluster, job, spec, family)
        said = training.epochs * epoch if epoch is not None else None
    if said is None:
        return None
    return begun + job.slack + max(FAR_OVER * said - progress.ran, 0.0)


def _likely_end(state: State, job: Job, end: float) -> float | None:
    """When a job without a limit should be over, by its epochs: if it is not, that is later."""
    limited = state.specs[job.spec].limit is not None
    stopping = job.progress is not None and job.progress.stop is not None
    return None if limited or stopping or end == inf else end


def _patience(state: State, job: Job) -> float | None:
    """When a job that was asked to stop has had time enough for it."""
    progress = job.progress
    if progress is None or progress.stop is None or job.state is not RUNNING:
        return None
    if state.rest.away and _out_of_reach(state, job):
        return None
    if progress.stop.ignored:
        return None
    spec = state.specs[job.spec]
    if not progress.listening:
        return progress.stop.boot + spec.warning.seconds if spec.warning is not None else None
    family = known(state.rest.families, job, spec)
    epoch = epoch_seconds(state.cluster, job, spec, family)
    return progress.stop.boot + (UNMEASURED if epoch is None else 2 * epoch + 60.0)


def _given_up(state: State, job: Job) -> list[tuple[str, float]]:
    """The silent machines of an attempt, and when its owner's rule gives each of them up."""
    patience = state.specs[job.spec].if_unreachable
    if patience is None or not state.rest.away or job.placement is None:
        return []
    over = {end.part for end in job.ends}
    found = []
    for number, part in enumerate(job.placement.parts):
        away = state.rest.away.get(part.node)
        if away is not None and away.boot is not None and number not in over:
            found.append((part.node, away.boot + patience))
    return found


def _limits(state: State, job: Job) -> tuple[float | None, float | None]:
    """When the attempt's time is up, and when it wants to be warned."""
    spec = state.specs[job.spec]
    if spec.limit is None or job.started_boot is None or job.state in _NOT_COUNTING:
        return None, None
    if state.rest.away and _out_of_reach(state, job):
        return None, None  # nobody can end it, and for all we know it has ended in time
    end = job.started_boot + spec.limit + job.slack
    warning = spec.warning
    return end, end - warning.seconds if warning and not job.warned else None


def _out_of_reach(state: State, job: Job) -> bool:
    """Whether all that may still run of an attempt is on silent machines."""
    over = {end.part for end in job.ends}
    parts = job.placement.parts if job.placement is not None else ()
    return all(part.node in state.rest.away or n in over for n, part in enumerate(parts))
