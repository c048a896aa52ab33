"""Why a job stands where it does in line, who is before it, and what would let it start."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from itertools import islice
from math import inf, log2

from msgspec import Struct

from stoker.core.cluster import Placement, Take
from stoker.core.estimate import remaining
from stoker.core.explain_figure import Figure, figure, gpus_in_words, overdue_in, span
from stoker.core.forecast import Expected
from stoker.core.job import Job
from stoker.core.policy.fit import could_ever
from stoker.core.policy.order import in_order
from stoker.core.policy.place import place
from stoker.core.policy.rank import OVERDUE, rank
from stoker.core.policy.rules import Gaps, Order
from stoker.core.request import GPU, Request
from stoker.core.state import State

FEW = 5
"""So many of those before it are told with the reason."""
ENDS, QUANTA, HEIRS = 3, 2, 3
"""How many ends, quanta and jobs to make room for are told."""
MOST_NAMED = 6
"""So many jobs are named in one sentence."""
LOOK_AT = 64
"""So many running jobs are thought of as ones that could make room."""
FIRST = 16
"""So many of those who wait are thought of as ones that room could be made for."""
WORDS = {
    Order.ARRIVAL: "arrival",
    Order.TIME: "time to go",
    Order.SERVICE: "GPU-seconds to go",
    Order.ATTAINED: "GPU-seconds so far",
    Order.SHARE: "what its owner has had lately",
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
    by = WORDS[rules.order] + (", the most first" if rules.longest else "")
    if len({found.priority for found in islice(state.line.classes.values(), LOOK_AT)}) > 1:
        by = f"priority, then {by}"
    late = overdue_in(known, at)
    left = None if late == inf else late
    return Standing(rules.name, by, position, len(state.line), figure(known, at), left)


def before(state: State, job: Job, ahead: Iterable[Job], at: float) -> tuple[Ahead, ...]:
    """The first of those who go first, each with the reason."""
    return tuple(Ahead(each.label, _why_before(state, each, job, at)) for each in ahead)


def _why_before(state: State, other: Job, job: Job, at: float) -> str:
    priority = state.priority(other)
    if priority != state.priority(job):
        lost = job.progress is not None and job.progress.demoted and other.priority <= job.priority
        more = "; this one took far longer than was said" if lost else ""
        return f"priority {priority}, not {state.priority(job)}{more}"
    if _level(state, other) < _level(state, job):
        ranks, known = state.line.ranks, state.known(other)
        if ranks.get(other.id) == OVERDUE:
            return "it has waited too long to be passed"
        if ranks.get(other.id, 0.0) < ranks.get(job.id, 0.0):
            return figure(known, at).text or f"its queue goes by {WORDS[known.rules.order]}"
        return "its owner has had less lately"
    came = "came first" if other.id < job.id else "was moved before it"
    alike = bool(figure(state.known(other), at).text)
    return f"counts as much, and {came}" if alike else came


def _level(state: State, job: Job) -> float:
    """Where a ready job stands among those of its priority."""
    return state.line.ranks.get(job.id, 0.0) + state.line.where[job.id].handicap


# -- what would let it start ------------------------------------------------------------------


def unblocks(
    state: State, job: Job, lacking: set[str], at: float, boot: float, expected: Expected
) -> tuple[str, ...]:
    """What would have to happen, the soonest first of each kind."""
    found = state.line.where.get(job.id)
    if found is None:
        return ()
    limit = state.limit_reached(found)
    if limit is not None:
        return (f"one of those that count has to end: {limit}",)
    request = state.request(job, found)
    if place(state.cluster, request) is not None:
        return _kept_for(state, job)
    holders = [
        each
        for each in state.running.values()
        if _can_be_waited_for(each) and _helps(state, each.placement, request, lacking)
    ]
    soonest, told = _ends(state, request, holders, at, boot, expected)
    told += _quanta(state, job, holders, at)
    stopping = [
        each.label
        for each in state.running.values()
        if not _can_be_waited_for(each) and _helps(state, each.placement, request, lacking)
    ]
    if stopping:
        soonest = 0.0
        many = len(stopping) > 1
        who = f"jobs {_listed(stopping, 'and')} stop" if many else f"job {stopping[0]} stops"
        told.append(f"{who}, as {'they were' if many else 'it was'} asked to")
    late = overdue_in(state.known(job), at)
    return (*told, *_overdue(state, job, late)) if late <= soonest else tuple(told)


def _kept_for(state: State, job: Job) -> tuple[str, ...]:
    """There is room, but it is for those before it."""
    stops = (each.progress.stop for each in state.running.values() if each.progress is not None)
    heirs = {stop.by for stop in stops if stop is not None and stop.by is not None}
    waiting = [state.jobs[id] for id in sorted(heirs & state.line.where.keys())]
    if not waiting:
        first = state.line.first(state.jobs, state.limit_reached)
        waiting = [first] if first is not None else []
    labels = [each.label for each in waiting if each is not job]
    if not labels:
        return ()
    return (f"job {_listed(labels, 'or')} starts, for which devices are kept, and leaves enough",)


def _can_be_waited_for(job: Job) -> bool:
    """Whether nobody has asked it to go anyway."""
    return job.progress is None or job.progress.stop is None


def _helps(state: State, placement: Placement | None, request: Request, lacking: set[str]) -> bool:
    """Whether it holds something that is lacking, on a machine that would do."""
    for part in placement.parts if placement is not None else ():
        node = state.cluster.nodes.get(part.node)
        if node is None or node.closed is not None or could_ever(node, request) is not None:
            continue
        if "exclusive" in lacking or any(take.type in lacking for take in part.takes):
            return True
    return False


def _ends(
    state: State, request: Request, holders: list[Job], at: float, boot: float, expected: Expected
) -> tuple[float, list[str]]:
    """Whose end would do, or of whom all have to end; and in how many seconds that is at best."""
    known = [(_ends_in(state, each, at, boot, expected), each) for each in holders]
    known = nsmallest(LOOK_AT, known, key=lambda it: it[0][0])
    alone = list(islice((it for it in known if _would_do(state, request, [it[1]])), ENDS))
    if not alone:
        return _ends_of_all(state, request, known)
    soon = [(left, how, each) for (left, how), each in alone if left < inf]
    if soon:
        return soon[0][0], [
            f"job {each.label} ends in {how} {span(left)}" if left else f"job {each.label} ends"
            for left, how, each in soon
        ]
    labels = _listed([each.label for _, each in alone], "or")
    return inf, [f"job {labels} ends: nobody knows when, since there is no time limit"]


def _ends_of_all(
    state: State, request: Request, known: list[tuple[tuple[float, str], Job]]
) -> tuple[float, list[str]]:
    """Nobody's end would do alone: those who have to end together, the first to end first."""
    needed: list[Job] = []
    for _, each in known:
        needed.append(each)
        if _would_do(state, request, needed):
            break
    else:
        return inf, []
    for each in needed[:-1]:
        fewer = [other for other in needed if other is not each]
        needed = fewer if _would_do(state, request, fewer) else needed
    ends = {each.id: end for end, each in known}
    labels = _listed([each.label for each in needed], "and")
    who = f"jobs {labels} end" if len(needed) > 1 else f"job {labels} ends"
    for each in needed:
        if ends[each.id][0] == inf:
            return inf, [f"{who}: nobody knows when, since job {each.label} has no time limit"]
    left, how = max(ends[each.id] for each in needed)
    return left, [f"{who} in {how} {span(left)}"]


def _would_do(state: State, request: Request, gone: list[Job]) -> bool:
    """Whether there is room if these are over."""
    later = state.cluster.shadow()
    for each in gone:
        if each.placement is not None:
            later.release(each.placement)
    return place(later, request) is not None


def _listed(labels: list[str], word: str) -> str:
    """Names in a sentence, no more than fit."""
    if len(labels) > MOST_NAMED:
        labels = [*labels[: MOST_NAMED - 1], f"{len(labels) - MOST_NAMED + 1} others"]
    *first, last = labels
    return f"{', '.join(first)} {word} {last}" if first else last


def _ends_in(
    state: State, job: Job, at: float, boot: float, expected: Expected
) -> tuple[float, str]:
    """Seconds until a job ends, and how sure that is."""
    spec = state.spec(job)
    if job.started_boot is None:
        return inf, ""
    left = remaining(state.rest.families, state.cluster, job, spec, at)
    if left is not None:
        return left, "about"
    ran, total = boot - job.started_boot - job.slack, expected(job)
    if spec.limit is not None and (total is None or total >= spec.limit or total <= ran):
        return max(spec.limit - ran, 0.0), "at most"
    return (max(total - ran, 0.0), "about") if total is not None else (inf, "")


def _quanta(state: State, job: Job, holders: list[Job], at: float) -> list[str]:
    """Who may be asked to make room, but not before it has had its time."""
    rules = state.policy(state.spec(job).queue)
    if not rules.preempts:
        return []
    least = _level(state, job) + log2(rules.hysteresis)
    found = []
    for each in islice((each for each in holders if each.id in state.victims), LOOK_AT):
        if state.priority(each) != state.priority(job) or not state.preempts(each):
            continue
        wait = _quantum_left(state, each, at)
        if wait > 0 and _running_level(state, each, at) > least:
            found.append((wait, each.id, each.label))
    return [
        f"job {label} could make room in {span(wait)}, after its quantum"
        for wait, _, label in nsmallest(QUANTA, found)
    ]


def _quantum_left(state: State, job: Job, at: float) -> float:
    quantum = state.policy(state.spec(job).queue).quantum
    return (job.started_at if job.started_at is not None else at) + quantum - at


def _running_level(state: State, job: Job, at: float) -> float:
    known = state.known(job)
    behind = state.line.handicaps.get(job.user, 0.0) if known.rules.fair else 0.0
    return rank(known, at)[0] + behind


def _overdue(state: State, job: Job, late: float) -> list[str]:
    rules = state.policy(state.spec(job).queue)
    if late == inf:
        return []
    then = "nobody passes it" if rules.gaps is Gaps.OVERDUE else "it goes first"
    return [f"overdue in {span(late)}, then {then}" if late else f"it is overdue: {then}"]


# -- of one that runs -------------------------------------------------------------------------


def room(state: State, job: Job, at: float, boot: float) -> tuple[str, ...]:
    """For whom a running job makes room, or might have to."""
    stop = job.progress.stop if job.progress is not None else None
    if stop is not None:
        then = (
            "it goes on later"
            if stop.gpus is None
            else f"it goes on with {gpus_in_words(stop.gpus)}"
        )
        if stop.ignored:
            then = "it has not, and nobody counts on it any more"
        return (f"it was asked to stop {span(max(boot - stop.boot, 0.0))} ago: {stop.why}; {then}",)
    if not len(state.line):
        return ()
    if job.id not in state.stoppable:
        cannot = "it cannot stop and go on later, so it keeps what it has until it ends"
        return (cannot,) if state.preempts(job) else ()
    wait = _quantum_left(state, job, at)
    told = []
    for each in in_order(state.line, state.jobs, FIRST):
        why = _why_make_room(state, job, each, at)
        if why is not None:
            later = f", not before {span(wait)} from now" if wait > 0 and why[1] else ""
            told.append(f"it may have to make room for job {each.label} ({why[0]}){later}")
    return tuple(told[:HEIRS])


def _why_make_room(state: State, job: Job, other: Job, at: float) -> tuple[str, bool] | None:
    """Why it would have to go for another, and whether it has its quantum before that."""
    found = state.line.where[other.id]
    if state.limit_reached(found):
        return None
    request = state.request(other, found)
    lacking = {GPU} if request.gpu_amount else {take.type for take in _takes(job.placement)}
    if not _helps(state, job.placement, request, lacking):
        return None
    ahead = state.priority(other) - state.priority(job)
    if ahead > 0:
        return f"priority {state.priority(other)}, not {state.priority(job)}", False
    rules = state.policy(found.queue)
    if ahead < 0 or not rules.preempts or not state.preempts(job):
        return None
    if _running_level(state, job, at) <= _level(state, other) + log2(rules.hysteresis):
        return None
    return figure(state.known(other), at).text, True


def _takes(placement: Placement | None) -> list[Take]:
    return [take for part in placement.parts for take in part.takes] if placement else []
