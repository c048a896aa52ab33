"""Why a job stands where it does in line, who is before it, and for whom it makes room."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from math import inf, log2

from msgspec import Struct

from stoker.core.cluster import Placement, Take
from stoker.core.explain_figure import Figure, figure, gpus_in_words, overdue_in, span
from stoker.core.job import Job
from stoker.core.policy.fit import could_ever
from stoker.core.policy.order import in_order
from stoker.core.policy.rank import OVERDUE, rank
from stoker.core.policy.rules import Order
from stoker.core.request import GPU, Request
from stoker.core.state import State

FEW = 5
"""So many of those before it are told with the reason."""
HEIRS = 3
"""How many jobs to make room for are told."""
LOOK_AT = 64
"""So many kinds of jobs are looked at for what tells them apart."""
FIRST = 16
"""So many of those who wait are thought of as ones that go first."""
WORDS = {
    Order.ARRIVAL: "arrival",
    Order.TIME: "remaining time",
    Order.SERVICE: "remaining GPU-seconds",
    Order.ATTAINED: "GPU-seconds used",
    Order.SHARE: "its user's recent usage",
}


class Standing(Struct, frozen=True):
    """Where a job stands in line, and by what."""

    policy: str
    by: str
    position: int | None
    """None: behind so many that nobody has counted."""
    of: int
    figure: Figure
    overdue_in: float | None = None


class Ahead(Struct, frozen=True):
    """One that goes first, and why."""

    label: str
    why: str


def standing(state: State, job: Job, position: int | None, at: float) -> Standing:
    """Where a ready job stands."""
    known = state.known(job)
    rules = known.rules
    by = WORDS[rules.order] + (", largest first" if rules.longest else "")
    if len({found.priority for found in islice(state.line.classes.values(), LOOK_AT)}) > 1:
        by = f"priority, then {by}"
    late = overdue_in(known, at)
    left = None if late == inf else late
    return Standing(rules.name, by, position, len(state.line), figure(known, at), left)


def before(state: State, job: Job, ahead: Iterable[Job], at: float) -> tuple[Ahead, ...]:
    """The first of those who go first, each with the reason."""
    return tuple(Ahead(each.label, _why_before(state, each, job, at)) for each in ahead)


def _why_before(state: State, other: Job, job: Job, at: float) -> str:
    if other.priority != job.priority:
        return f"priority {other.priority}, not {job.priority}"
    if level(state, other) < level(state, job):
        ranks, known = state.line.ranks, state.known(other)
        if ranks.get(other.id) == OVERDUE:
            return "it has been pending too long: no job may start ahead of it"
        if ranks.get(other.id, 0.0) < ranks.get(job.id, 0.0):
            return figure(known, at).text or f"its queue is ordered by {WORDS[known.rules.order]}"
        return "its user has used less recently"
    came = "came first" if other.id < job.id else "was moved ahead of it"
    alike = bool(figure(state.known(other), at).text)
    return f"equal, and {came}" if alike else came


def level(state: State, job: Job) -> float:
    """Where a ready job stands among those of its priority."""
    return state.line.ranks.get(job.id, 0.0) + state.line.where[job.id].handicap


# -- of one that runs -------------------------------------------------------------------------


def room(state: State, job: Job, at: float, boot: float) -> tuple[str, ...]:
    """For whom a running job makes room, or might have to."""
    stop = job.progress.stop if job.progress is not None else None
    if stop is not None:
        then = (
            "it is requeued"
            if stop.gpus is None
            else f"it continues with {gpus_in_words(stop.gpus)}"
        )
        if stop.ignored:
            then = "it has not stopped, and is no longer counted on to stop"
        return (f"it was asked to stop {span(max(boot - stop.boot, 0.0))} ago: {stop.why}; {then}",)
    if not len(state.line):
        return ()
    if job.id not in state.stoppable:
        if not state.preempts(job):
            return ()
        if state.spec(job).training is not None and not (job.progress and job.progress.listening):
            return ("it has not reported yet that it can be preempted and resumed",)
        return ("it cannot be preempted and resumed, so it keeps its resources until it ends",)
    wait = quantum_left(state, job, at)
    told = []
    for each in in_order(state.line, state.jobs, FIRST):
        why = _why_make_room(state, job, each, at)
        if why is not None:
            later = f", not within the next {span(wait)}" if wait > 0 and why[1] else ""
            told.append(f"it may be preempted for job {each.label} ({why[0]}){later}")
    return tuple(told[:HEIRS])


def _why_make_room(state: State, job: Job, other: Job, at: float) -> tuple[str, bool] | None:
    """Why it would have to go for another, and whether it has its quantum before that."""
    found = state.line.where[other.id]
    if state.limit_reached(found):
        return None
    request = state.request(other, found)
    lacking = {GPU} if request.gpu_amount else {take.type for take in _takes(job.placement)}
    if not helps(state, job.placement, request, lacking):
        return None
    ahead = other.priority - job.priority
    if ahead > 0:
        return f"priority {other.priority}, not {job.priority}", False
    rules = state.policy(found.queue)
    if ahead < 0 or not rules.preempts or not state.preempts(job):
        return None
    if running_level(state, job, at) <= level(state, other) + log2(rules.hysteresis):
        return None
    return figure(state.known(other), at).text, True


def _takes(placement: Placement | None) -> list[Take]:
    return [take for part in placement.parts for take in part.takes] if placement else []


def helps(state: State, placement: Placement | None, request: Request, lacking: set[str]) -> bool:
    """Whether it holds something that is lacking, on a machine that would do."""
    for part in placement.parts if placement is not None else ():
        node = state.cluster.nodes.get(part.node)
        if node is None or node.closed is not None or could_ever(node, request) is not None:
            continue
        if "exclusive" in lacking or any(take.type in lacking for take in part.takes):
            return True
    return False


def quantum_left(state: State, job: Job, at: float) -> float:
    """Seconds for which a running job is not asked to make room for an equal."""
    quantum = state.policy(state.spec(job).queue).quantum
    return (job.started_at if job.started_at is not None else at) + quantum - at


def running_level(state: State, job: Job, at: float) -> float:
    """Where a running job would stand among those of its priority."""
    known = state.known(job)
    behind = state.line.handicaps.get(job.user, 0.0) if known.rules.fair else 0.0
    return rank(known, at)[0] + behind
