"""Who stops so that somebody who waits has room: as few as possible, and who can wait best."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import chain, islice
from math import inf, log2

from msgspec import Struct

from stoker.core.cluster import Cluster, Placement, Shadow, Take
from stoker.core.job import Job
from stoker.core.policy import elastic
from stoker.core.policy.bars import left_on, most_of
from stoker.core.policy.fit import fit, gpus_needed, wants
from stoker.core.policy.later import can_be_asked
from stoker.core.policy.order import JobClass
from stoker.core.policy.place import machines_for, place
from stoker.core.policy.room import MOST_MACHINES, Room
from stoker.core.request import GPU, Request
from stoker.core.standings import stand_anew
from stoker.core.state import State

MOST_EACH = 8
"""On so many machines it is thought of who could stop, for each that one who waits asks for."""


class Offer(Struct, frozen=True):
    """What a running job can give: all it has, or all but the least that it needs."""

    job: Job
    keeps: Request | None = None


class Want:
    """One who waits, and what it takes to make room for it."""

    def __init__(self, state: State, request: Request, found: JobClass, level: float) -> None:
        self.state, self.request, self.urgency = state, request, found.priority
        self.each = request.part
        """What it asks one machine for."""
        self.anew = found.anew or state.line.all_anew or request.machines > 1
        """Whether all machines are to be looked at, or only those that have changed. A machine
        that has may do for a gang, with others as before."""
        rules = state.policy(found.queue)
        self.least = level + log2(rules.hysteresis) if rules.preempts else inf
        """Of equals, only those stop for it who stand further back than this."""
        self.needed = dict(wants(request))
        """How much of each type a machine must have at least."""
        if request.gpu_amount:
            self.needed[GPU] = gpus_needed(request)

    def allows(self, name: str) -> bool:
        """Whether a machine will do."""
        request = self.request
        if request.nodes and name not in request.nodes:
            return False
        return name not in request.not_nodes


def choose(room: Room, want: Want, at: float) -> list[Offer]:
    """As few as possible, entered in the ledger; nothing when not even all would do."""
    if want.request.machines > 1:
        return _on_several(room, want, at)
    if want.state.elastic:
        for name in _of_elastic(want):
            if room.looked_at < MOST_MACHINES and (mine := _on(room, want, name, at, False)):
                return mine
    for name in _candidates(room, want):
        if mine := _on(room, want, name, at):
            return mine
    return []


def _on_several(room: Room, want: Want, at: float) -> list[Offer]:
    """Those who make room for a part on as many machines as are missing."""
    later, request = room.later, want.request
    names = list(_candidates(room, want))
    chosen: list[Offer] = []
    if machines_for(later, request) + len(names) < request.machines:
        return []
    for name in names:
        node = later.node(name)
        if node is None or fit(node, want.each) is not None:
            continue
        if room.looked_at >= MOST_MACHINES:
            break
        chosen += _on(room, want, name, at, but={offer.job.id for offer in chosen})
        if machines_for(later, request) == request.machines:
            break
    if chosen and place(later, request) is not None:
        return _without_the_needless(later, request, chosen)
    undo(later, chosen)
    return []


def _candidates(room: Room, want: Want) -> Iterator[str]:
    """Machines on which somebody may make room, as long as there is time to think of them."""
    names: Iterable[str] = room.machines(want.each, (-want.urgency, want.least), want.anew)
    if want.state.elastic:
        names = dict.fromkeys([*_of_elastic(want), *names])
    for name in islice(filter(want.allows, names), MOST_EACH * want.request.machines):
        if room.looked_at >= MOST_MACHINES:
            return
        yield name


def _of_elastic(want: Want) -> list[str]:
    """Machines with jobs that can do with fewer GPUs."""
    jobs = want.state.elastic.values()
    parts = (part for job in jobs if job.placement is not None for part in job.placement.parts)
    return [name for name in dict.fromkeys(part.node for part in parts) if want.allows(name)]


def _on(
    room: Room, want: Want, name: str, at: float, whole: bool = True, but: Container[int] = ()
) -> list[Offer]:
    """Who has to stop on a machine, entered in the ledger; nobody when not even all would do.

    With `whole`, also those who give all they have. `but`: those who are entered already.
    """
    room.looked_at += 1
    here = _Here(room.later, want, name)
    for offer in _offers_on(want, name, at, whole):
        if offer.job.id not in but and here.add(offer) and here.fits():
            return here.needed()
    here.undo()
    return []


class _Here:
    """What one machine would have if those stopped who were thought of."""

    def __init__(self, later: Shadow, want: Want, name: str) -> None:
        self.later, self.want, self.name = later, want, name
        self.offers: dict[int, Offer] = {}
        self._entered: dict[int, Offer] = {}
        node = later.node(name)
        assert node is not None
        self._open = node.closed is None
        self._cards = left_on(node, GPU)
        self._there = {type: sum(left_on(node, type).values()) for type in want.needed}

    def add(self, offer: Offer) -> bool:
        """Think of one more; whether there may be enough of everything now."""
        gives = self._gives(offer)
        if not self._open or not (gives or self.want.request.exclusive):
            return False
        before = self.offers.pop(offer.job.id, None)
        if before is not None:  # one that offered a part before offers the whole now
            self._count(before, -1)
            if self._entered.pop(offer.job.id, None):
                undo(self.later, [before])
        self.offers[offer.job.id] = offer
        self._count(offer, +1)
        there, needed = self._there, self.want.needed
        if not all(there[type] >= amount for type, amount in needed.items()):
            return False
        return most_of(self._cards.values()) >= needed.get(GPU, 0)

    def _gives(self, offer: Offer) -> list[Take]:
        """What it has of what is wanted."""
        parts = _offered(self.later, offer)
        takes = chain.from_iterable(part.takes for part in parts if part.node == self.name)
        return [take for take in takes if take.type in self.want.needed]

    def _count(self, offer: Offer, times: int) -> None:
        for take in self._gives(offer):
            self._there[take.type] += times * take.amount
            if take.type == GPU and take.device in self._cards:
                self._cards[take.device] += times * take.amount

    def fits(self) -> bool:
        """Whether it has room if all of those stop, who are entered in the ledger."""
        for id, offer in self.offers.items():
            if id not in self._entered:
                enter(self.later, [offer])
                self._entered[id] = offer
        return self._fits()

    def _fits(self) -> bool:
        node = self.later.node(self.name)
        return node is not None and fit(node, self.want.each) is not None

    def needed(self) -> list[Offer]:
        """Leave out whoever need not have been asked, the first who were thought of first."""
        found = []
        for offer in self.offers.values():
            undo(self.later, [offer])
            if not self._fits():
                enter(self.later, [offer])
                found.append(offer)
        return found

    def undo(self) -> None:
        """Let all of them go on."""
        undo(self.later, list(self._entered.values()))


def _offers_on(want: Want, name: str, at: float, whole: bool) -> Iterator[Offer]:
    """What could be had on a machine, the cheapest first."""
    state, urgency = want.state, want.urgency
    for job in list(state.elastic.values()):
        if job.placement is None or job.placement.on(name) is None:
            continue
        if job.priority <= urgency and can_be_asked(job):
            keeps = elastic.spare(state, job)
            if keeps is not None:
                yield Offer(job, keeps)
    for priority, rank, _, id in state.victims.worst_on(name) if whole else ():
        if (-urgency, want.least) >= (priority, rank):  # none of the rest stands further back
            return
        job = state.jobs[id]
        if not can_be_asked(job):
            continue
        if -priority == urgency:
            if not state.preempts(job) or not _loses_nothing(state, job):
                continue
            if not state.victims.holds(id, at):
                stand_anew(state, job, at)
            if state.victims.level(id) <= want.least or not _had_its_time(state, job, at):
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


def _without_the_needless(shadow: Cluster, request: Request, offers: list[Offer]) -> list[Offer]:
    """Leave out whoever need not have been asked, the first who were thought of first."""
    needed = []
    for offer in offers:
        undo(shadow, [offer])
        if place(shadow, request) is None:
            enter(shadow, [offer])
            needed.append(offer)
    return needed


def enter(ledger: Cluster, offers: list[Offer]) -> None:
    """Give back what is offered."""
    for offer in offers:
        for part in _offered(ledger, offer):
            ledger.release(part)


def undo(ledger: Cluster, offers: list[Offer]) -> None:
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
