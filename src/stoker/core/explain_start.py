"""What would let a waiting job start: whose end, or who has to go first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nsmallest
from itertools import chain, islice
from math import inf, log2

from stoker.core.explain_figure import overdue_in, span
from stoker.core.explain_order import FIRST, helps, level, quantum_left, running_level
from stoker.core.foreign import UNAVAILABLE
from stoker.core.job import Job
from stoker.core.lifecycle import JobState
from stoker.core.outlook import Kind, Span
from stoker.core.policy.fit import on_node, suits
from stoker.core.policy.order import in_order
from stoker.core.policy.place import place
from stoker.core.policy.rules import Gaps
from stoker.core.request import GPU, Request
from stoker.core.state import State

Ends = Callable[[Job], Span | None]
"""The estimated end of a running job."""
ENDS, QUANTA = 3, 2
"""How many ends and quanta are told."""
MOST_NAMED = 6
"""So many jobs are named in one sentence."""
LOOK_AT = 64
"""So many running jobs are thought of as ones that could make room."""


def unblocks(
    state: State, job: Job, lacking: set[str], at: float, boot: float, ends: Ends
) -> tuple[str, ...]:
    """What would have to happen, the soonest first of each kind."""
    found = state.line.where.get(job.id)
    if found is None:
        return ()
    limit = state.limit_reached(found)
    if limit is not None:
        return (f"a job that counts towards the limit must end: {limit}",)
    request = state.request(job, found)
    if place(state.cluster, request) is not None:
        return _kept_for(state, job)
    useful = [
        each for each in state.running.values() if helps(state, each.placement, request, lacking)
    ]
    holders = [each for each in useful if _can_be_waited_for(each)]
    leaving = [each for each in useful if not _can_be_waited_for(each)]
    then = _Then(state, job, request, leaving)
    soonest, told = 0.0, _stops(leaving)
    if not (leaving and then.has_room([])):
        soonest, first = _ends(state, then, holders, at, boot, ends)
        told = first + _quanta(state, job, holders, at) + told + _foreign_use(state, then, request)
        told = told or then.those_before_it()
    late = overdue_in(state.known(job), at)
    return (*told, *_overdue(state, job, late)) if late <= soonest else tuple(told)


class _Then:
    """Whether there is room for a job once some are over, and those before it have had theirs."""

    def __init__(self, state: State, job: Job, request: Request, leaving: list[Job]) -> None:
        self.state, self.request, self.leaving = state, request, leaving
        self.queue = state.spec(job).queue
        self.before: list[Job] = []
        for each in in_order(state.line, state.jobs, FIRST):
            if each is job:
                break
            self.before.append(each)

    def has_room(self, gone: list[Job], vacated: Iterable[tuple[str, str]] = ()) -> bool:
        """Return True if the job starts once these jobs are over and these GPUs are left alone."""
        later, state = self.state.cluster.shadow(), self.state
        for node, gpu in vacated:
            device = later.own(node).by_name[GPU, gpu]
            device.stranger, device.stranger_memory = None, 0
        for each in (*self.leaving, *gone):
            if each.placement is not None:
                later.release(each.placement)
        for each in self.before:
            found = state.line.where[each.id]
            if state.limit_reached(found):
                continue
            taken = place(later, state.request(each, found))
            if taken is not None:
                later.take(taken)
            elif found.queue == self.queue and state.gaps(found.queue) is Gaps.NOBODY:
                return False
        return place(later, self.request) is not None

    def those_before_it(self) -> list[str]:
        """Nobody's end is enough: others have to begin, and to end."""
        if not self.before:
            return []
        who = "job" if len(self.before) == 1 else "jobs"
        return [
            f"the jobs ahead of it must start first: {who} {_listed(_labels(self.before), 'and')}"
        ]


def _labels(jobs: list[Job]) -> list[str]:
    return [each.label for each in jobs]


def _stops(leaving: list[Job]) -> list[str]:
    if not leaving:
        return []
    many = len(leaving) > 1
    labels = _listed(_labels(leaving), "and")
    who = f"jobs {labels} stop" if many else f"job {labels} stops"
    return [f"{who}, as {'they were' if many else 'it was'} asked to"]


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
    why = "devices are reserved for it"
    if state.gaps(state.spec(job).queue) is Gaps.NOBODY:
        why = "this queue does not backfill"
    return (f"job {_listed(labels, 'and')} starts first: {why}",)


def _can_be_waited_for(job: Job) -> bool:
    """Whether nobody has asked it to go anyway."""
    return job.progress is None or job.progress.stop is None


def _ends(
    state: State, then: _Then, holders: list[Job], at: float, boot: float, ends: Ends
) -> tuple[float, list[str]]:
    """Whose end would do, or of whom all have to end; and in how many seconds that is at best."""
    known = [(_ends_in(state, each, at, boot, ends), each) for each in holders]
    known = nsmallest(LOOK_AT, known, key=lambda it: it[0][0])
    alone = list(islice((it for it in known if then.has_room([it[1]])), ENDS))
    if not alone:
        return _ends_of_all(then, known)
    soon = [(left, how, each) for (left, how), each in alone if left < inf]
    if soon:
        return soon[0][0], [
            f"job {each.label} ends in {how} {span(left)}" if left else f"job {each.label} ends"
            for left, how, each in soon
        ]
    labels = _listed([each.label for _, each in alone], "or")
    (_, why), first = alone[0]
    return inf, [f"job {labels} ends: no estimate, because job {first.label} {why}"]


def _ends_of_all(
    then: _Then, known: list[tuple[tuple[float, str], Job]]
) -> tuple[float, list[str]]:
    """Nobody's end would do alone: those who have to end together, the first to end first."""
    needed: list[Job] = []
    for _, each in known:
        needed.append(each)
        if then.has_room(needed):
            break
    else:
        return inf, []
    for each in needed[:-1]:
        fewer = [other for other in needed if other is not each]
        needed = fewer if then.has_room(fewer) else needed
    ends = {each.id: end for end, each in known}
    labels = _listed([each.label for each in needed], "and")
    who = f"jobs {labels} end" if len(needed) > 1 else f"job {labels} ends"
    for each in needed:
        if ends[each.id][0] == inf:
            return inf, [f"{who}: no estimate, because job {each.label} {ends[each.id][1]}"]
    left, how = max(ends[each.id] for each in needed)
    return left, [f"{who} in {how} {span(left)}"]


def _listed(labels: list[str], word: str) -> str:
    """Names in a sentence, no more than fit."""
    if len(labels) > MOST_NAMED:
        labels = [*labels[: MOST_NAMED - 1], f"{len(labels) - MOST_NAMED + 1} others"]
    *first, last = labels
    return f"{', '.join(first)} {word} {last}" if first else last


def _ends_in(state: State, job: Job, at: float, boot: float, ends: Ends) -> tuple[float, str]:
    """Return the seconds until a job ends and "about" or "at most"; or inf and why."""
    if job.state is JobState.SUSPENDED:
        return inf, f"is paused (stoker resume {job.label})"
    if job.started_boot is None:
        return inf, "is starting"
    end = ends(job)
    if end is not None and end.likely is not None:
        return max(end.likely - at, 0.0), "at most" if end.kind is Kind.LIMIT else "about"
    limit = state.spec(job).limit
    if limit is None:
        return inf, "has no time limit"
    return max(limit - (boot - job.started_boot - job.slack), 0.0), "at most"


def _foreign_use(state: State, then: _Then, request: Request) -> list[str]:
    """Name the GPUs that would do if their other users left: each user alone, else together."""
    ask = request.gpus
    if ask is None or not ask.amount or ask.despite_strangers:
        return []
    used: dict[str, list[tuple[str, str]]] = {}
    for node in state.cluster.nodes.values():
        for device in node.types.get(GPU, ()) if node.closed is None else ():
            if device.stranger is not None and suits(device, on_node(ask, node.name)):
                used.setdefault(device.stranger, []).append((node.name, device.name))
    alone = list(islice((it for it in used.items() if then.has_room([], it[1])), ENDS))
    if not alone:
        needed = dict(used)
        if not used or not then.has_room([], chain(*needed.values())):
            return []
        for mark in used:
            fewer = {each: gpus for each, gpus in needed.items() if each != mark}
            needed = fewer if then.has_room([], chain(*fewer.values())) else needed
        alone = [(_listed(list(needed), "and"), list(chain(*needed.values())))]
    several = len(state.cluster.nodes) > 1
    return [_becomes_free(mark, gpus, several) for mark, gpus in alone]


def _becomes_free(mark: str, gpus: list[tuple[str, str]], several: bool) -> str:
    names = _listed([f"{node}/{gpu}" if several else gpu for node, gpu in gpus], "and")
    why = mark if mark.startswith(UNAVAILABLE) else f"used by {mark}"
    return f"GPU{'s' * (len(gpus) > 1)} {names} become{'s' * (len(gpus) == 1)} free, now {why}"


def _quanta(state: State, job: Job, holders: list[Job], at: float) -> list[str]:
    """Who may be asked to make room, but not before it has had its time."""
    rules = state.policy(state.spec(job).queue)
    if not rules.preempts:
        return []
    least = level(state, job) + log2(rules.hysteresis)
    found = []
    for each in islice((each for each in holders if each.id in state.victims), LOOK_AT):
        if each.priority != job.priority or not state.preempts(each):
            continue
        wait = quantum_left(state, each, at)
        if wait > 0 and running_level(state, each, at) > least:
            found.append((wait, each.id, each.label))
    return [
        f"job {label} can be preempted in {span(wait)}, after its quantum"
        for wait, _, label in nsmallest(QUANTA, found)
    ]


def _overdue(state: State, job: Job, late: float) -> list[str]:
    rules = state.policy(state.spec(job).queue)
    if late == inf:
        return []
    then = "no job may start ahead of it" if rules.gaps is Gaps.OVERDUE else "it starts first"
    return [f"overdue in {span(late)}, then {then}" if late else f"it is overdue: {then}"]
