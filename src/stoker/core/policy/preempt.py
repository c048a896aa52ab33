"""Who makes room: running jobs that can stop, for those that are more urgent or have nothing."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from math import inf, log2

from msgspec import Struct

from stoker.core.cluster import Cluster, Placement, Shadow
from stoker.core.events import StopAsked, StopWithdrawn
from stoker.core.job import Job
from stoker.core.lifecycle import JobState
from stoker.core.policy import elastic, rounds
from stoker.core.policy.backfill import keep, reserve
from stoker.core.policy.order import LONG_AGO, Heads, JobClass
from stoker.core.policy.place import fit, machines_for, place, wants
from stoker.core.policy.rules import Gaps
from stoker.core.policy.shelf import Place
from stoker.core.request import GPU, Request
from stoker.core.state import State

LOOK_AT = 16
"""So many of those who wait, the first in line first, are looked at in one cycle."""
MOST_OFFERS = 32
"""So many of those who run are thought of in one cycle, for all of them together."""
MOST_QUESTIONS = 4
"""So often it is worked out in one cycle what those before would make of the room."""


class Offer(Struct, frozen=True):
    """What a running job can give: all it has, or all but the least that it needs."""

    job: Job
    keeps: Request | None = None


class Room:
    """The ledger as it will be when all who were asked have stopped, and for whom it is kept."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.kept: list[tuple[Place, int, Placement]] = []
        """Those for whom others are making room: where they stand, and what is kept for them."""
        self.offers = 0
        """How many of those who run have been thought of."""
        self.reserved = False
        """Whether some have room and do not start, since it is reserved for others."""
        self.later: Shadow
        self.asking: set[int] = set()
        """Those for whose sake somebody was asked."""
        self.look()

    def look(self) -> None:
        """Work out what is free later, and for whom it is kept."""
        state = self.state
        self.later = state.cluster.shadow()
        for job in state.leaving.values():
            if _is_stopping(job) and job.placement is not None:
                self.later.release(job.placement)
                _come_back(state, self.later, job)
        self.asking = {by for job in state.leaving.values() if (by := _for_whom(job))}
        self.kept.clear()
        if state.promises:
            self._keep_promises()

    def _keep_promises(self) -> None:
        """What was found for somebody is kept, as long as nobody more urgent has taken it."""
        state, line, promises = self.state, self.state.line, self.state.promises
        if not state.leaving:
            promises.clear()
        for id in [id for id in promises if id not in line]:
            del promises[id]
        for seat, id in sorted((line.seat(state.jobs[id]), id) for id in promises):
            placement = promises[id]
            if is_there(self.later, placement):
                self.later.take(placement)
                self.kept.append((seat, id, placement))
            else:
                del promises[id]

    def promise(self, seat: Place, head: int, placement: Placement) -> None:
        """Keep this for somebody, if it was made for them; others only count on it."""
        self.later.take(placement)
        if head in self.asking:
            self.state.promises[head] = placement
            insort(self.kept, (seat, head, placement))

    def take_over(self, seat: Place, request: Request) -> Placement | None:
        """What is kept for those who stand behind this place, the last of them first."""
        robbed = []
        while self.kept and self.kept[-1][0] > seat:
            robbed.append(self.kept.pop())
            self.later.release(robbed[-1][2])
            found = place(self.later, request)
            if found is not None:
                for _, head, _ in robbed:
                    del self.state.promises[head]
                return found
        for each in reversed(robbed):
            self.later.take(each[2])
            self.kept.append(each)
        return None

    def started(self, job: int, placement: Placement) -> None:
        """Somebody has started, wherever that was."""
        promised = self.state.promises.pop(job, None)
        if promised is not None:
            self.later.release(promised)
            self.kept[:] = [each for each in self.kept if each[1] != job]
        if is_there(self.later, placement):
            self.later.take(placement)
        else:  # it stands before somebody for whom this was kept, who has to look again
            self.look()


def _for_whom(job: Job) -> int | None:
    """Who waits for what this one holds."""
    return job.progress.stop.by if job.progress is not None and job.progress.stop else None


def is_there(ledger: Cluster, placement: Placement) -> bool:
    """Whether all of a placement is free in this ledger."""
    for part in placement.parts:
        node = ledger.node(part.node)
        if node is None or node.closed is not None:
            return False
        for take in part.takes:
            device = node.by_name.get((take.type, take.device))
            if device is None or device.gone or device.drained is not None:
                return False
            if device.left < take.amount or (take.memory and device.memory_free < take.memory):
                return False
    return True


def make_room(
    state: State, room: Room, at: float, boot: float
) -> Iterator[StopAsked | StopWithdrawn]:
    """Yield who is to stop now, or no longer; the caller applies each before the next.

    0. Whoever was asked for the sake of one that does not wait any more may go on.
    1. Two who together need more of a GPU's memory than it has: the later one gives way.
    2. For each of those who wait, the first in line first: what would be free once all have
       stopped who were asked before. If that is enough, it has only to wait.
    3. Otherwise as few as possible stop: elastic jobs that can do with less, then those of
       lower priority, then, where the policy says so, those who need far more than it does.
    4. Elastic jobs that were dealt more in the last round are asked when there is room for it.
    5. Where there are no such rounds, and nobody waits, they may grow into what is free.
    """
    withdrawn = [job for job in state.leaving.values() if _for_nobody(state, job)]
    for job in withdrawn:
        yield StopWithdrawn(at=at, job=job.id, attempt=job.attempt)
    if withdrawn:
        room.look()
    for job in _crowded(state):
        yield _ask(job, "its GPU has not enough memory for all who share it", at, boot)
    later, blocked = room.later, _Blocked(state, boot)
    heads, looked = Heads(state.line), 0
    for seat, found, id in _hopeful(state, heads):
        if looked == LOOK_AT or room.offers == MOST_OFFERS:
            break
        if id in state.promises or rounds.sees_to(state, id):
            looked += 1
            continue
        head = state.jobs[id]
        hopeless = state.hopeless.get(found, inf) <= seat[1]
        if hopeless or found.queue in blocked.queues or state.limit_reached(found):
            heads.given_up.add(found)
            continue
        looked += 1
        request = state.request(head, found)
        there = None
        if state.leaving or room.reserved:  # otherwise it is known to have no room
            there = place(later, request) or room.take_over(seat, request)
        if there is None:
            chosen = _choose(state, room, request, found, seat[1], at)
            if chosen and not blocked.let(later, request, head, chosen):
                _undo(later, chosen)
                chosen = []
            if chosen:
                room.asking.add(id)
            for offer in chosen:
                gpus = elastic.count(offer.keeps) if offer.keeps is not None else None
                yield _ask(offer.job, f"job {head.label} needs room", at, boot, head.id, gpus)
            there = place(later, request) if chosen else None
        if there is not None:
            room.promise(seat, id, there)
        else:
            blocked.add(found, seat, request)
            heads.given_up.add(found)
            spent = room.offers == MOST_OFFERS
            if not (spent or state.elastic or blocked.requests or state.leaving):
                state.hopeless[found] = seat[1]
    yield from _growing(state, room, at, boot)


def _growing(state: State, room: Room, at: float, boot: float) -> Iterator[StopAsked]:
    """Elastic jobs that go on with more GPUs."""
    if state.allotted:
        now = state.cluster.shadow()
        for _, _, placement in room.kept:
            keep(now, placement)
        yield from rounds.grow(state, now, at, boot)
    if not len(state.line):
        growing = [
            job
            for job in state.elastic.values()
            if _can_be_asked(job) and not rounds.takes_part(state, job)
        ]
        for job, gpus, why in elastic.grown(state, room.later, growing, at) if growing else ():
            yield _ask(job, why, at, boot, gpus=gpus)


class _Blocked:
    """Those for whom no room can be made. They keep their place before those behind them."""

    def __init__(self, state: State, boot: float) -> None:
        self.state, self.boot = state, boot
        self.queues: set[str] = set()
        """Queues of strict order whose head is among them."""
        self.requests: list[Request] = []
        self.questions = 0

    def add(self, found: JobClass, seat: Place, request: Request) -> None:
        """Nobody can make room for this one."""
        gaps = self.state.gaps(found.queue)
        if gaps is not Gaps.ANYBODY and (gaps is not Gaps.OVERDUE or seat[1] <= LONG_AGO):
            self.requests.append(request)
        if gaps is Gaps.NOBODY:
            self.queues.add(found.queue)

    def let(self, shadow: Cluster, request: Request, head: Job, chosen: list[Offer]) -> bool:
        """Whether one behind them could start if these stopped, or would stop them in vain."""
        if not self.requests:
            return True
        self.questions += 1
        if self.questions > MOST_QUESTIONS:
            return False
        gone = {offer.job.id for offer in chosen}
        running = self.state.running
        ends = [
            (end, placement)
            for end, id in self.state.ending
            if (placement := running[id].placement) is not None
            and id not in gone
            and not _is_stopping(running[id])
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
    if ahead or stop.gpus is not None:
        return ahead < 0
    if not state.preempts(job):
        return True
    return state.victims.level(job.id) <= state.line.where[stop.by].place[1]


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


def _come_back(state: State, shadow: Cluster, job: Job) -> None:
    """One that stops only to have fewer GPUs, or more, takes those first."""
    stop = job.progress.stop if job.progress is not None else None
    if stop is None or not stop.gpus:
        return
    request = elastic.sized(
        state.effective(job, state.spec(job)), stop.gpus, elastic.machine(state)
    )
    there = place(shadow, request)
    if there is not None:
        shadow.take(there)


def _hopeful(state: State, heads: Heads) -> Iterator[tuple[Place, JobClass, int]]:
    """Those who wait, as long as somebody could make room for them."""
    worst = next(state.victims.worst_first(), None)
    if worst is None and not state.elastic:
        return
    for seat, found, id in heads:
        if not state.elastic and worst is not None and seat[:2] >= worst[:2]:
            return
        yield seat, found, id


def _offers(state: State, found: JobClass, level: float, at: float) -> Iterator[Offer]:
    """What could be had for one of a class that stands there, the cheapest first."""
    urgency = found.priority
    for job in list(state.elastic.values()):
        if state.priority(job) <= urgency and _can_be_asked(job):
            keeps = elastic.spare(state, job)
            if keeps is not None:
                yield Offer(job, keeps)
    rules = state.policy(found.queue)
    least = level + log2(rules.hysteresis) if rules.preempts else inf
    for priority, rank, _, id in state.victims.worst_first():
        if (-urgency, least) >= (priority, rank):  # none of the rest stands further back
            return
        job = state.jobs[id]
        if not _can_be_asked(job):
            continue
        if -priority == urgency:
            if not state.preempts(job) or not _loses_nothing(state, job):
                continue
            if not state.victims.holds(id, at):
                state.stand_anew(job, at)
            if state.victims.level(id) <= least or not _had_its_time(state, job, at):
                continue
        yield Offer(job)


def _loses_nothing(state: State, job: Job) -> bool:
    """Whether it saves its work before it stops, and is not merely begun anew."""
    listens = job.progress is not None and job.progress.listening
    return listens or state.spec(job).warning is not None


def _had_its_time(state: State, job: Job, at: float) -> bool:
    """Whether an attempt has had its quantum."""
    quantum = state.policy(state.spec(job).queue).quantum
    return job.started_at is not None and at - job.started_at >= quantum


def _choose(
    state: State, room: Room, request: Request, found: JobClass, level: float, at: float
) -> list[Offer]:
    """As few as possible, entered in the ledger; nothing when not even all would do."""
    later, offers = room.later, dict[int, Offer]()
    tally = _Tally(later, request)
    more = request.machines - (machines_for(later, request) if request.machines > 1 else 0)
    for offer in _offers(state, found, level, at):
        if room.offers == MOST_OFFERS:
            break
        room.offers += 1
        if not _of_use(later, offer.job.placement, request):
            continue
        before = offers.pop(offer.job.id, None)
        if before is not None:  # one that offered a part before offers the whole now
            tally.count(before, -1)
        offers[offer.job.id] = offer
        tally.count(offer, +1)
        if len(tally.enough) < more:
            continue
        if request.machines == 1:
            mine = _who_suffice(later, request, offer, list(offers.values()), tally)
            if mine:
                return _without_the_needless(later, request, mine)
            continue
        useful = [each for each in offers.values() if not tally.enough.isdisjoint(_nodes_of(each))]
        _enter(later, useful)
        if place(later, request) is not None:
            return _without_the_needless(later, request, useful)
        _undo(later, useful)
    return []


def _who_suffice(
    later: Shadow, request: Request, last: Offer, offers: list[Offer], tally: _Tally
) -> list[Offer]:
    """Of those thought of, those on a machine where the last of them makes a difference.

    They are entered in the ledger, if that is enough for a request for one machine.
    """
    parts = last.job.placement.parts if last.job.placement is not None else ()
    for name in [part.node for part in parts if part.node in tally.enough]:
        mine = [each for each in offers if name in _nodes_of(each)]
        _enter(later, mine)
        node = later.node(name)
        if node is not None and fit(node, request) is not None:
            return mine
        _undo(later, mine)
    return []


class _Tally:
    """How much each machine would have if those stopped who were thought of."""

    def __init__(self, later: Shadow, request: Request) -> None:
        self.later = later
        ask = request.gpus
        plain = ask is not None and not ask.beside and ask.share is None and not request.exclusive
        self.needed = dict(wants(request))
        """How much of each type a machine must have at least."""
        self.needed[GPU] = ask.amount if ask is not None and plain else 0
        self.several = request.machines > 1
        self.there: dict[str, dict[str, int]] = {}
        self.enough: set[str] = set()
        """Machines that may have enough of everything."""
        self.before: set[str] = set()
        """Machines that had, without anybody stopping."""

    def count(self, offer: Offer, times: int) -> None:
        """Think of one more, or no longer."""
        needed = self.needed
        for part in _offered(self.later, offer):
            there = self.there.get(part.node)
            if there is None:
                there = self.there[part.node] = self._free(part.node)
                if all(there[type] >= amount for type, amount in needed.items()):
                    self.before.add(part.node)
            for take in part.takes:
                if take.type in needed:
                    there[take.type] += times * take.amount
            enough = all(there[type] >= amount for type, amount in needed.items())
            if enough and not (self.several and part.node in self.before):
                self.enough.add(part.node)
            else:
                self.enough.discard(part.node)

    def _free(self, name: str) -> dict[str, int]:
        node = self.later.node(name)
        types = node.types if node is not None else {}
        return {
            type: sum(
                device.left
                for device in types.get(type, ())
                if not device.gone and device.drained is None
            )
            for type in self.needed
        }


def _without_the_needless(shadow: Cluster, request: Request, offers: list[Offer]) -> list[Offer]:
    """Leave out whoever need not have been asked, the first who were thought of first."""
    there = place(shadow, request)
    assert there is not None
    nodes = {part.node for part in there.parts}
    useless = [offer for offer in offers if nodes.isdisjoint(_nodes_of(offer))]
    _undo(shadow, useless)
    needed = []
    for offer in offers:
        if offer in useless:
            continue
        _undo(shadow, [offer])
        if place(shadow, request) is None:
            _enter(shadow, [offer])
            needed.append(offer)
    return needed


def _nodes_of(offer: Offer) -> set[str]:
    return {part.node for part in offer.job.placement.parts} if offer.job.placement else set()


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
        if kept:  # of what it has, the first GPUs, and all beside them that is no GPU
            cards = tuple(take for take in takes if take.type == GPU)
            takes, kept = cards[kept:], max(kept - len(cards), 0)
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


def _crowded(state: State) -> list[Job]:
    """Jobs that share a GPU whose memory is not enough for all, one for each such GPU."""
    found: dict[int, Job] = {}
    on: dict[tuple[str, str], list[Job]] = {}
    for job in state.sharing.values():
        for part in job.placement.parts if job.placement is not None else ():
            for name in part.names(GPU):
                on.setdefault((part.node, name), []).append(job)
    for (node, name), jobs in on.items():
        device = state.cluster.nodes[node].by_name[GPU, name]
        short = device.memory_free - device.stranger_memory < 0 and not device.gone
        if device.slivers < 2 or not short:
            continue
        if any(job.progress is not None and job.progress.stop is not None for job in jobs):
            continue
        sharing = [job for job in jobs if job.id in state.stoppable and job.id not in found]
        sharing = [job for job in sharing if _can_be_asked(job)]
        if sharing:
            last = max(sharing, key=lambda job: (-state.priority(job), job.started_at or 0.0))
            found[last.id] = last
    return list(found.values())
