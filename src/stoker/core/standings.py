"""Where those stand who wait and who run, and who may have to make room for whom."""

from __future__ import annotations

from math import inf

from stoker.core.admission import admit, line_up, may_displace
from stoker.core.job import Job
from stoker.core.policy.order import LONG_AGO
from stoker.core.policy.rank import gpus_of, rank
from stoker.core.policy.share import can_stop
from stoker.core.state import State
from stoker.core.usage import EVERY


def refresh(state: State, at: float) -> None:
    """Time has passed: put those anew whose rank has changed by itself."""
    if at >= state.fair_at and state.line.users:
        state.fair_at = at + EVERY
        _be_fair(state, at)
    if state.deal_at <= at:
        state.deal_at = inf
        state.line.stirred = True
    for id in state.drift.due(at):
        job = state.jobs.get(id)
        if job is None:
            continue
        stirred = state.line.stirred
        if id in state.line:
            line_up(state, job, at)
            seat, worst = state.line.seat(job), state.victims.worst()
            late = seat[1] <= LONG_AGO
            state.line.stirred = stirred or late or may_displace(state, seat, worst)
        elif id in state.stoppable:
            stand_anew(state, job, at)
            look_who_may_displace(state, job)


def _be_fair(state: State, at: float) -> None:
    """Whoever has had more than others stands further back."""
    users = sorted({*state.line.users, *state.usage.holding})
    for user, back in state.usage.handicaps(users, at).items():
        if state.line.handicaps.get(user, 0.0) != back:
            state.line.handicap(user, back)
            state.line.stirred = True


def readmit(state: State, queue: str | None, at: float) -> None:
    """Something else counts in a queue, or in all of them: all who wait there stand anew."""
    state.line.renew_all()
    for id in list(state.line.where):
        if queue is None or state.specs[state.jobs[id].spec].queue == queue:
            admit(state, state.jobs[id], at)
    for job in list(state.stoppable.values()):
        if queue is None or state.specs[job.spec].queue == queue:
            look_whether_stoppable(state, job, at)


def readmit_for_nodes(state: State, at: float) -> None:
    """Readmit pending jobs that may run on other nodes, after nodes came, went or changed."""
    queues: list[str | None] = list(state.gpus_moved())
    for queue in [None] if state.rest.lacking else queues:
        readmit(state, queue, at)


def look_whether_stoppable(state: State, job: Job, at: float) -> None:
    """Update the index of preemptible jobs: those that can be stopped by request or by signal.

    Never on a delegated node: what is freed there is not ours to give to another job.
    """
    if job.started_at is None or state.is_delegated(job):
        return
    if can_stop(job, state.specs[job.spec]):
        state.stoppable[job.id] = job
        stand_anew(state, job, at)


def stand_anew(state: State, job: Job, at: float) -> None:
    """Work out how soon a running job makes room for others."""
    known = state.known(job)
    level, until, holds = rank(known, at) if known.rules.preempts else (0.0, inf, inf)
    if known.rules.fair and level > LONG_AGO:
        level += known.rules.fair * state.line.handicaps.get(job.user, 0.0)
    started = job.started_at or 0.0
    state.victims.put(job.id, job.placement, job.priority, level, started, holds)
    if known.rules.quantum and job.started_at is not None:
        own = job.started_at + known.rules.quantum
        until = min(until, own) if own > at else until
    state.drift.put(job.id, until)


def look_who_may_displace(state: State, job: Job) -> None:
    """A running job stands elsewhere: somebody may want its devices now."""
    first = state.line.earliest()
    if first is not None and may_displace(state, first, state.victims.seat(job.id)):
        state.victims.stir(job.id)
        state.line.stirred = True


def anybody_may_displace(state: State) -> bool:
    """Whether somebody who waits may get what one of those has who run."""
    first = state.line.earliest()
    return first is not None and may_displace(state, first, state.victims.worst())


def took_up(state: State, job: Job) -> None:
    """An attempt has begun: what it holds counts for its user."""
    spec = state.specs[job.spec]
    if state.policy(spec.queue).fair and job.started_at is not None:
        state.usage.begins(job.user, gpus_of(spec.request), job.started_at)


def laid_down(state: State, job: Job, at: float) -> None:
    """An attempt is over: what it had counts for a while."""
    spec = state.specs[job.spec]
    if state.policy(spec.queue).fair and job.started_at is not None:
        state.usage.ends(job.user, gpus_of(spec.request), job.started_at, at)
        state.rest_changed = True


def other_policies(state: State, queue: str | None, at: float) -> None:
    """A queue, or all of them, go by another policy: who stands where, and what counts for whom."""
    state.usage.holding.clear()  # as after a restart: of those who run, by what counts from now on
    for job in state.running.values():
        took_up(state, job)
    readmit(state, queue, at)
