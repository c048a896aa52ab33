"""Who waits stands in line once it is ready; until then, something will wake it."""

from __future__ import annotations

from functools import partial
from heapq import heappush
from math import inf

from msgspec.structs import replace

from stoker.core.dependency import Dependency, Other, Standing, standing
from stoker.core.job import Job
from stoker.core.lifecycle import JobState
from stoker.core.policy.rank import rank
from stoker.core.policy.shelf import Place
from stoker.core.policy.victims import Seat
from stoker.core.state import State


def admit(state: State, job: Job, now: float) -> None:
    """Decide whether a waiting job is ready, and if not, what will wake it."""
    todo = [job.id]
    while todo:
        # Whoever waits for a job that can never start can never start either.
        before = todo[-1] in state.doomed
        line_up(state, state.jobs[todo[-1]], now)
        id = todo.pop()
        if before != (id in state.doomed):
            todo += [each for each in state.dependents.get(id, ()) if each in state.jobs]


def line_up(state: State, job: Job, now: float) -> None:
    """Put one job where it belongs in the line, or take it out.

    Nothing is to be planned for one behind its like: if they have no room, nor has it.
    """
    step_out(state, job)
    state.doomed.discard(job.id)
    if job.state is not JobState.PENDING:
        return
    if not _ready(state, job, now):
        return
    level, until, _ = rank(state.known(job), now)
    first = state.line.add(job, state.key(job), level)
    if first or state.elastic or may_displace(state, state.line.seat(job), state.victims.worst()):
        state.line.stirred = True
    ask = state.specs[job.spec].request.gpus
    if ask is not None and ask.most is not None:
        state.flexible[job.id] = None
    state.drift.put(job.id, until)


def step_out(state: State, job: Job) -> None:
    """One that waited leaves the line: those behind it may go now."""
    state.line.stirred |= state.line.remove(job)


def may_displace(state: State, seat: Place, other: Seat | None) -> bool:
    """Whether one who runs stands so far behind this place that it may have to make room."""
    return other is not None and (seat[0], seat[1] + state.policies.reluctance) < other[:2]


def _ready(state: State, job: Job, now: float) -> bool:
    dependency = dependency_of(state, job)
    if dependency is not None:
        how, _, wake = dependency_standing(state, job, now)
        if how is Standing.MET and dependency.delayed and not job.delay_over:
            job.delay_over = True
            state.touched.add(job.id)
        # Also when it is met: it may open again, should the other job be retried.
        for other in dependency.jobs():
            state.dependents.setdefault(other, set()).add(job.id)
        if wake is not None:
            heappush(state.alarms, (wake, job.id))
        if how is Standing.NEVER:
            state.doomed.add(job.id)
        if how is not Standing.MET:
            return False
    if job.held:
        return False
    if job.begin_at is not None:
        heappush(state.alarms, (job.begin_at, job.id))
        return False
    return True


# -- waiting for others ---------------------------------------------------------------------


def dependency_standing(
    state: State, job: Job, now: float
) -> tuple[Standing, list[int], float | None]:
    """How a job's dependency stands, the jobs it is still about, and when a delay ends."""
    dependency = dependency_of(state, job)
    if dependency is None:
        return Standing.MET, [], None
    return standing(dependency, partial(as_seen, state), inf if job.delay_over else now)


def as_seen(state: State, id: int) -> Other | None:
    """A job, or all of a sweep, as its dependants see it."""
    sweep, job = state.sweeps.get(id), state.jobs.get(id)
    if sweep is not None:
        began = sweep.created_at if sweep.issued else None
        return Other(not sweep.open, sweep.went_well, began)
    if job is None:
        return None
    started = [past.started_at for past in job.past if past.started_at is not None]
    last = job.started_at if job.started_at is not None or not started else started[-1]
    return Other(job.finished, job.state is JobState.COMPLETED, last, id in state.doomed)


def dependency_of(state: State, job: Job) -> Dependency | None:
    """What this very job waits for: of another array, the member with its own index."""
    dependency = state.specs[job.spec].dependency
    if dependency is not None and dependency.by_member:
        return replace(
            dependency,
            clauses=tuple(
                replace(clause, jobs=_same_index(state, job, clause.jobs))
                if clause.kind == "aftercorr"
                else clause
                for clause in dependency.clauses
            ),
        )
    return dependency


def _same_index(state: State, job: Job, others: tuple[int, ...]) -> tuple[int, ...]:
    known = [state.jobs[id] for id in others if id in state.jobs]
    same = tuple(each.id for each in known if each.index == job.index)
    return same or others


def unlink(state: State, job: Job) -> None:
    """A job waits for others no longer."""
    dependency = state.specs[job.spec].dependency
    for other in dependency.jobs() if dependency else ():
        waiting = state.dependents.get(other)
        if waiting is not None:
            waiting.discard(job.id)
            if not waiting:
                del state.dependents[other]
