"""Who makes room: running jobs that can stop, for those that are more urgent or have nothing."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge, nsmallest

from msgspec import Struct

from stoker.core.cluster import Cluster, Placement
from stoker.core.events import StopAsked, StopWithdrawn
from stoker.core.job import Job
from stoker.core.lifecycle import JobState
from stoker.core.policy import elastic
from stoker.core.policy.backfill import reserve
from stoker.core.policy.order import JobClass
from stoker.core.policy.place import place
from stoker.core.request import GPU, Request
from stoker.core.state import State

LOOK_AT = 16
"""So many of those who wait, the first in line first, are looked at in one cycle."""
MOST_QUESTIONS = 4
"""So often it is worked out in one cycle what those before would make of the room."""


class Offer(Struct, frozen=True):
    """What a running job can give: all it has, or all but the least that it needs."""

    job: Job
    keeps: Request | None = None


def make_room(state: State, at: float, boot: float) -> Iterator[StopAsked | StopWithdrawn]:
    """Yield who is to stop now, or no longer; the caller applies each before the next.

    0. Whoever was asked for the sake of one that does not wait any more may go on.
    1. Two who together need more of a GPU's memory than it has: the later one gives way.
    2. For each of those who wait, the first in line first: what would be free once all have
       stopped who were asked before. If that is enough, it has only to wait.
    3. Otherwise as few as possible stop: elastic jobs that can do with less, then those of
       lower priority, the least urgent and the latest first.
    4. When nobody waits, elastic jobs may grow into what is free.
    """
    for job in [job for job in state.stoppable.values() if _for_nobody(state, job)]:
        yield StopWithdrawn(at=at, job=job.id, attempt=job.attempt)
    able = {id: job for id, job in state.stoppable.items() if _can_be_asked(job)}
    if not able:
        return
    for job in _crowded(state, able):
        del able[job.id]
        why = "its GPU has not enough memory for all who share it"
        yield _ask(job, why, at, boot)
    shadow, blocked = _once_they_have_stopped(state), _Blocked(state, boot)
    for found in _waiting(state, able):
        head = state.line.head(found, state.jobs)
        if head is None or found.queue in blocked.queues:
            continue
        request = state.request(head, found)
        there = place(shadow, request)
        if there is None:
            chosen = _choose(shadow, request, _offers(state, head, able))
            if chosen and not blocked.let(shadow, request, head, chosen):
                _undo(shadow, chosen)
                chosen = []
            for offer in chosen:
                del able[offer.job.id]
                gpus = elastic.count(offer.keeps) if offer.keeps is not None else None
                yield _ask(offer.job, f"job {head.label} needs room", at, boot, head.id, gpus)
            there = place(shadow, request) if chosen else None
        if there is not None:
            shadow.take(there)
        else:
            blocked.add(found.queue, request)
    if not len(state.line):
        for job, gpus, why in elastic.grown(state, shadow, list(able.values()), at):
            yield _ask(job, why, at, boot, gpus=gpus)


class _Blocked:
    """Those for whom no room can be made. They keep their place before those behind them."""

    def __init__(self, state: State, boot: float) -> None:
        self.state, self.boot = state, boot
        self.queues: set[str] = set()
        """Queues of strict order whose head is among them."""
        self.requests: list[Request] = []
        self.questions = 0

    def add(self, queue: str, request: Request) -> None:
        """Nobody can make room for this one."""
        self.requests.append(request)
        limits = self.state.rest.queues.get(queue)
        if limits is not None and limits.strict:
            self.queues.add(queue)

    def let(self, shadow: Cluster, request: Request, head: Job, chosen: list[Offer]) -> bool:
        """Whether one behind them could start if these stopped, or would stop them in vain."""
        if not self.requests:
            return True
        self.questions += 1
        if self.questions > MOST_QUESTIONS:
            return False
        gone = {offer.job.id for offer in chosen}
        ends = [
            (self.state.latest_end(job), job.placement)
            for job in self.state.running.values()
            if job.placement is not None and job.id not in gone and not _is_stopping(job)
        ]
        found = (reserve(shadow, ends, each) for each in self.requests)
        ahead = next(filter(None, found), None)
        if ahead is None or ahead.over_in_time(self.boot, self.state.spec(head).limit):
            return True
        return place(ahead.beside(shadow), request) is not None


def _ask(
    job: Job, why: str, at: float, boot: float, by: int | None = None, gpus: int | None = None
) -> StopAsked:
    return StopAsked(at=at, job=job.id, attempt=job.attempt, why=why, boot=boot, by=by, gpus=gpus)


def _for_nobody(state: State, job: Job) -> bool:
    """Whether the one for whom it was to make room has started, or is not that urgent any more."""
    stop = job.progress.stop if job.progress is not None else None
    if stop is None or stop.by is None or job.state is not JobState.RUNNING:
        return False
    if job.progress is None or not job.progress.listening:
        return False
    if stop.by not in state.line:
        return True
    ahead = state.priority(state.jobs[stop.by]) - state.priority(job)
    return ahead < 0 or (ahead == 0 and stop.gpus is None)


def _can_be_asked(job: Job) -> bool:
    if job.state is not JobState.RUNNING or job.placement is None:
        return False
    return job.progress is None or job.progress.stop is None


def _is_stopping(job: Job) -> bool:
    """Whether what it holds is free before long. One that is paused does not come to its end."""
    if job.state is JobState.COMPLETING:
        return True
    stop = job.progress.stop if job.progress is not None else None
    return stop is not None and not stop.ignored and job.state is JobState.RUNNING


def _once_they_have_stopped(state: State) -> Cluster:
    """The ledger as it will be when all have stopped who were asked to, or are being ended."""
    shadow = state.cluster.shadow()
    for job in state.running.values():
        if _is_stopping(job) and job.placement is not None:
            shadow.release(job.placement)
            _come_back(state, shadow, job)
    return shadow


def _come_back(state: State, shadow: Cluster, job: Job) -> None:
    """One that stops only to have fewer GPUs, or more, takes those first."""
    stop = job.progress.stop if job.progress is not None else None
    if stop is None or not stop.gpus:
        return
    request = elastic.sized(state.effective(job, state.spec(job)), stop.gpus)
    there = place(shadow, request)
    if there is not None:
        shadow.take(there)


def _waiting(state: State, able: dict[int, Job]) -> list[JobClass]:
    """The classes whose heads have no room and for whom somebody here could make some."""
    least = min(map(state.priority, able.values()), default=0)
    if not any(elastic.spare(state, job) for job in able.values()):
        least += 1
    line = state.line
    singles = nsmallest(LOOK_AT, line.single.values(), key=lambda each: each.place)
    shelves = [group.shelf for group in line.groups.values()]
    found: list[JobClass] = []
    for each in merge(singles, *shelves, key=lambda each: each.place):
        if each.priority < least or len(found) == LOOK_AT:
            break
        if not state.limit_reached(each):
            found.append(each)
    return found


def _offers(state: State, head: Job, able: dict[int, Job]) -> list[Offer]:
    """What could be had for this one, the cheapest first."""
    urgency = state.priority(head)
    shrinking = [
        Offer(job, keeps)
        for job in able.values()
        if state.priority(job) <= urgency and (keeps := elastic.spare(state, job)) is not None
    ]
    stopping = [Offer(job) for job in able.values() if state.priority(job) < urgency]
    stopping.sort(key=lambda offer: (state.priority(offer.job), -(offer.job.started_at or 0.0)))
    return shrinking + stopping


def _choose(shadow: Cluster, request: Request, offers: list[Offer]) -> list[Offer]:
    """As few as possible, entered in the shadow; nothing when not even all would do."""
    useful = [offer for offer in offers if _of_use(shadow, offer.job.placement, request)]
    everything = list({offer.job.id: offer for offer in useful}.values())
    _enter(shadow, everything)
    enough = place(shadow, request) is not None
    _undo(shadow, everything)
    if not enough:
        return []
    taken: dict[int, Offer] = {}
    for offer in useful:
        before = taken.get(offer.job.id)  # one that offered a part before offers the whole now
        if before is not None:
            _undo(shadow, [before])
        taken[offer.job.id] = offer
        _enter(shadow, [offer])
        if place(shadow, request) is not None:
            break
    return _without_the_needless(shadow, request, list(taken.values()))


def _without_the_needless(shadow: Cluster, request: Request, offers: list[Offer]) -> list[Offer]:
    """Leave out whoever need not have been asked, the first who were thought of first."""
    needed = []
    for offer in offers:
        _undo(shadow, [offer])
        if place(shadow, request) is None:
            _enter(shadow, [offer])
            needed.append(offer)
    return needed


def _enter(ledger: Cluster, offers: list[Offer]) -> None:
    """Give back what is offered."""
    for offer in offers:
        for part in _offered(ledger, offer):
            ledger.release(part)


def _undo(ledger: Cluster, offers: list[Offer]) -> None:
    """Have them keep it after all."""
    for offer in offers:
        for part in _offered(ledger, offer):
            ledger.take(part)


def _offered(ledger: Cluster, offer: Offer) -> list[Placement]:
    """What a job gives back, but for devices that its machine no longer has."""
    placement = offer.job.placement
    assert placement is not None
    kept = elastic.count(offer.keeps) if offer.keeps is not None else 0
    found = []
    for part in placement.parts:
        node, takes = ledger.node(part.node), part.takes
        devices = node.by_name if node is not None else {}
        if offer.keeps is not None:  # of what it has, the first GPUs, and all that is no GPU
            takes = tuple(take for take in takes if take.type == GPU)[kept:]
        there = [take for take in takes if not devices[take.type, take.device].gone]
        found.append(Placement(part.node, tuple(there)))
    return found


def _of_use(ledger: Cluster, placement: Placement | None, request: Request) -> bool:
    """Whether it holds anything of what is wanted, on a machine that will do."""
    if placement is None:
        return False
    there = {part.node: ledger.node(part.node) for part in placement.parts}
    nodes = {name for name, node in there.items() if node is not None and node.closed is None}
    if request.nodes:
        nodes &= set(request.nodes)
    wanted = {GPU} if request.gpu_amount else set()
    wanted |= {"cpu"} if request.cpus else set()
    wanted |= {"mem"} if request.memory else set()
    wanted |= {name for name, _ in request.named}
    parts = [part for part in placement.parts if part.node in nodes - set(request.not_nodes)]
    return (request.exclusive and bool(parts)) or any(
        take.type in wanted for part in parts for take in part.takes
    )


def _crowded(state: State, able: dict[int, Job]) -> list[Job]:
    """Jobs that share a GPU whose memory is not enough for all, one for each such GPU."""
    found: dict[int, Job] = {}
    asked = {
        (part.node, name)
        for job in state.stoppable.values()
        if job.progress is not None and job.progress.stop is not None and job.placement
        for part in job.placement.parts
        for name in part.names(GPU)
    }
    for node in state.cluster.nodes.values():
        for device in node.types.get(GPU, ()):
            short = device.memory_free - device.stranger_memory < 0 and not device.gone
            if device.slivers < 2 or not short or (node.name, device.name) in asked:
                continue
            sharing = [
                job
                for job in able.values()
                if (part := job.placement.on(node.name) if job.placement else None) is not None
                and device.name in part.names(GPU)
            ]
            if sharing:
                last = max(sharing, key=lambda job: (-state.priority(job), job.started_at or 0.0))
                found[last.id] = last
    return list(found.values())
