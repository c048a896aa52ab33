"""Who makes room: running jobs that can stop, for those that are more urgent or have nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import inf
from typing import Protocol

from stoker.core.cluster import Cluster
from stoker.core.events import StopAsked, StopWithdrawn
from stoker.core.job import Job
from stoker.core.lifecycle import JobState
from stoker.core.policy import elastic, rounds
from stoker.core.policy.backfill import End, Ends, keep
from stoker.core.policy.bars import Bar
from stoker.core.policy.choose import Offer, Want, choose, undo
from stoker.core.policy.heads import Heads, HopefulHeads
from stoker.core.policy.later import can_be_asked, is_stopping
from stoker.core.policy.order import JobClass, ReadyLine
from stoker.core.policy.place import place
from stoker.core.policy.room import MOST_MACHINES, Room
from stoker.core.policy.rules import Gaps
from stoker.core.policy.shelf import Place
from stoker.core.request import GPU, Request
from stoker.core.standings import anybody_may_displace
from stoker.core.state import State

LOOK_AT = 16
"""So many of those who wait, the first in line first, are looked at in one cycle."""
MOST_QUESTIONS = 4
"""So often it is worked out in one cycle what those before would make of the room."""


class Guard(Protocol):
    """Who may start, and who would delay others."""

    def may_be_held_up(self, seat: Place) -> bool:
        """Whether one who stands there may have to wait for those before it, room or not."""

    def lets_in(self, seat: Place, job: Job, request: Request, ledger: Cluster, ends: Ends) -> bool:
        """Whether it could start, if this were free now and these still ran."""


class Makers:
    """Who makes room in one cycle."""

    def __init__(self, state: State, room: Room, guard: Guard, at: float, boot: float) -> None:
        self.state, self.room, self.at, self.boot = state, room, at, boot
        self.guard = guard
        self.blocked = _Blocked(state, guard)
        self.given_up: set[JobClass] = set()
        """Classes for which nobody can make room in this cycle."""

    def may_be_asked_before(self, job: Job, end: Place) -> bool:
        """Whether others may make room for one who stands before a job, and the job would not."""
        spec, first = self.state.specs[job.spec], self.state.line.earliest()
        if first is None or first >= end:
            return False
        saves = spec.training is not None or spec.warning is not None
        return (spec.steady or not saves) and anybody_may_displace(self.state)

    def asked(self) -> Iterator[StopAsked | StopWithdrawn]:
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
        state, room, at, boot = self.state, self.room, self.at, self.boot
        for each in _withdrawn(state, room, at):
            yield each
            self._begin_anew()
        for job in _crowded(state):
            yield _ask(job, "its GPU has too little memory for all jobs that share it", at, boot)
        yield from self._asked(_heads(state, room), None)
        state.bars.anew.clear()
        yield from _growing(state, room, at, boot)

    def _begin_anew(self) -> None:
        """Somebody may make room who could not before."""
        for found in self.given_up:
            if found.heap:
                self.state.line.renew(found)
        self.given_up.clear()

    def asked_before(self, end: Place, nodes: Sequence[str]) -> Iterator[StopAsked]:
        """Yield who is to stop for those before a place, where one could start on these machines.

        What is free there, with what others would free, may be what one before it has waited for.
        """
        yield from self._asked(_heads(self.state, self.room, nodes), end)

    def _asked(self, heads: Heads, end: Place | None) -> Iterator[StopAsked]:
        state, room, looked = self.state, self.room, 0
        heads.given_up = self.given_up
        for seat, found, id in _while_any_hope(state, heads):
            if end is not None and seat >= end:
                return
            if looked == LOOK_AT or room.looked_at >= MOST_MACHINES:
                return
            if id in state.promises or rounds.sees_to(state, id):
                looked += 1
                continue
            if found.queue in self.blocked.queues or state.limit_reached(found):
                self.given_up.add(found)
                continue
            looked += 1
            changes = room.later.changes
            yield from self._for_one(seat, found, state.jobs[id])
            if room.later.changes != changes:
                heads.forget()
        if end is None:
            state.line.all_anew = False

    def _for_one(self, seat: Place, found: JobClass, head: Job) -> Iterator[StopAsked]:
        state, room, later = self.state, self.room, self.room.later
        request = state.request(head, found)
        held_up = self.guard.may_be_held_up(seat)
        if not held_up and room.has_spare(head.id, request):
            state.line.renew(found)  # others may take it
            return
        in_vain = held_up and not self.blocked.let(seat, later, request, head)
        there = room.find(seat, request) if not in_vain else None
        if there is None and not in_vain:
            chosen = choose(room, Want(state, request, found, seat[1]), self.at)
            if held_up and chosen:
                in_vain = not self.blocked.let(seat, later, request, head, chosen)
            if in_vain:
                undo(later, chosen)
            elif chosen:
                room.asking.add(head.id)
                yield from _asked(chosen, head, self.at, self.boot)
                there = place(later, request)
        if there is not None:
            room.promise(seat, head.id, there)
            state.line.renew(found)
            return
        self.blocked.add(found)
        self.given_up.add(found)
        if in_vain:
            state.line.renew(found)  # all this may count for it once nobody holds it up
            return
        # In strict order, the next of the class asks for something else.
        sure = found not in room.counting and found.request is not None
        if sure and room.looked_at < MOST_MACHINES:
            state.line.looked_at(found)


def _withdrawn(state: State, room: Room, at: float) -> Iterator[StopWithdrawn]:
    """Whoever was asked in vain goes on."""
    found = [job for job in state.leaving.values() if _for_nobody(state, job)]
    for job in found:
        yield StopWithdrawn(at=at, job=job.id, attempt=job.attempt)
        state.victims.stir(job.id)
    if found:
        room.look()


def _asked(offers: list[Offer], head: Job, at: float, boot: float) -> Iterator[StopAsked]:
    for offer in offers:
        gpus = elastic.count(offer.keeps) if offer.keeps is not None else None
        yield _ask(offer.job, f"job {head.label} needs its resources", at, boot, head.id, gpus)


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
            if can_be_asked(job) and not rounds.takes_part(state, job)
        ]
        for job, gpus, why in elastic.grown(state, room.later, growing, at) if growing else ():
            yield _ask(job, why, at, boot, gpus=gpus)


class _Blocked:
    """Those for whom no room can be made. They keep their place before those behind them."""

    def __init__(self, state: State, guard: Guard) -> None:
        self.state, self.guard = state, guard
        self.queues: set[str] = set()
        """Queues of strict order whose head is among them."""
        self.questions = 0

    def add(self, found: JobClass) -> None:
        """Nobody can make room for this one."""
        if self.state.gaps(found.queue) is Gaps.NOBODY:
            self.queues.add(found.queue)

    def let(
        self, seat: Place, later: Cluster, request: Request, head: Job, chosen: Sequence[Offer] = ()
    ) -> bool:
        """Whether one with room there could start, if these stopped, or would stop them in vain."""
        if not chosen and place(later, request) is None:
            return True
        self.questions += 1
        if self.questions > MOST_QUESTIONS:
            return False
        gone = {offer.job.id for offer in chosen}
        return self.guard.lets_in(seat, head, request, later, partial(self._ends, gone))

    def _ends(self, gone: set[int]) -> Iterator[End]:
        """When those are over who go on, worked out as far as somebody asks."""
        running = self.state.running
        for end, id in self.state.ending:
            placement = running[id].placement
            if placement is not None and id not in gone and not is_stopping(running[id]):
                yield end, placement


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
    ahead = state.jobs[stop.by].priority - job.priority
    if ahead or stop.gpus is not None:
        return ahead < 0
    if not state.preempts(job):
        return True
    return state.victims.level(job.id) <= state.line.where[stop.by].place[1]


def _heads(state: State, room: Room, nodes: Sequence[str] | None = None) -> Heads:
    """Those who wait and for whom somebody may make room; if said so, on these machines."""
    if not (state.elastic or anybody_may_displace(state)):
        return Heads(ReadyLine())
    if not _may_pass(state):
        return Heads(state.line)

    def hope(bar: Bar) -> Bar:
        return bar[0], bar[1] - state.policies.reluctance

    if nodes is not None:
        on_these = partial(room.bar_on, nodes)
        return HopefulHeads(state.line, lambda need: hope(on_these(need)))
    return HopefulHeads(
        state.line, lambda need: hope(room.new_bar(need)), lambda need: hope(room.bar(need))
    )


def _may_pass(state: State) -> bool:
    """Whether those for whom nobody can make room hold up nobody else, unless they are overdue."""
    passing = Gaps.ANYBODY, Gaps.OVERDUE
    return not state.elastic and all(state.gaps(queue) in passing for queue in state.line.queues)


def _while_any_hope(state: State, heads: Heads) -> Iterator[tuple[Place, JobClass, int]]:
    """Those who wait, as long as somebody could make room for them."""
    worst = state.victims.worst()
    if worst is None and not state.elastic:
        return
    least = worst[:2] if worst is not None and not state.elastic else (inf, inf)
    for seat, found, id in heads:
        if (seat[0], seat[1] + state.policies.reluctance) >= least:
            return
        yield seat, found, id


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
        sharing = [job for job in sharing if can_be_asked(job)]
        if sharing:
            last = max(sharing, key=lambda job: (-job.priority, job.started_at or 0.0))
            found[last.id] = last
    return list(found.values())
