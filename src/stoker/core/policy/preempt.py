"""Who makes room: running jobs that can stop, for those that are more urgent or have nothing."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from stoker.core.cluster import Cluster, Placement
from stoker.core.events import StopAsked
from stoker.core.job import Job
from stoker.core.policy import elastic
from stoker.core.policy.order import JobClass
from stoker.core.policy.place import place
from stoker.core.request import GPU, Request
from stoker.core.state import State

LOOK_AT = 16
"""So many of those who wait, the first in line first, are looked at in one cycle."""


class Offer(Struct, frozen=True):
    """What a running job can give: all it has, or all but the least that it needs."""

    job: Job
    keeps: Request | None = None


def make_room(state: State, at: float, boot: float) -> Iterator[StopAsked]:
    """Yield who is to stop now. The caller applies each decision before asking for the next.

    1. Two who together need more of a GPU's memory than it has: the later one gives way.
    2. For each of those who wait, the first in line first: what would be free once all have
       stopped who were asked before. If that is enough, it has only to wait.
    3. Otherwise as few as possible stop: elastic jobs that can do with less, then those of
       lower priority, the least urgent and the latest first.
    4. When nobody waits, elastic jobs may grow into what is free.
    """
    able = {id: job for id, job in state.stoppable.items() if _can_be_asked(job)}
    if not able:
        return
    for job in _crowded(state, able):
        del able[job.id]
        why = "its GPU has not enough memory for all who share it"
        yield _ask(job, why, at, boot)
    shadow = _once_they_have_stopped(state)
    waiting = _waiting(state, able)
    for found in waiting:
        head = state.line.head(found, state.jobs)
        if head is None:
            continue
        request = state.request(head, found)
        there = place(shadow, request)
        if there is None:
            chosen = _choose(state, shadow, request, _offers(state, head, able))
            for offer in chosen:
                del able[offer.job.id]
                gpus = elastic.count(offer.keeps) if offer.keeps is not None else None
                yield _ask(offer.job, f"job {head.label} needs room", at, boot, head.id, gpus)
            there = place(shadow, request)
        if there is not None:
            shadow.take(there)
    if not len(state.line):
        for job, gpus, why in elastic.grown(state, shadow, list(able.values()), at):
            yield _ask(job, why, at, boot, gpus=gpus)


def _ask(
    job: Job, why: str, at: float, boot: float, by: int | None = None, gpus: int | None = None
) -> StopAsked:
    return StopAsked(at=at, job=job.id, attempt=job.attempt, why=why, boot=boot, by=by, gpus=gpus)


def _can_be_asked(job: Job) -> bool:
    return job.placement is not None and (job.progress is None or job.progress.stop is None)


def _once_they_have_stopped(state: State) -> Cluster:
    """The ledger as it will be when all who were asked have stopped."""
    shadow = state.cluster.copy()
    for job in state.stoppable.values():
        if job.progress is not None and job.progress.stop is not None and job.placement:
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
    elastics = any(elastic.spare(state, job) for job in able.values())
    found = [
        each
        for each in state.line.classes.values()
        if (each.priority > least or (elastics and each.priority >= least))
        and not state.limit_reached(each)
    ]
    return sorted(found, key=lambda each: each.place)[:LOOK_AT]


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


def _choose(state: State, shadow: Cluster, request: Request, offers: list[Offer]) -> list[Offer]:
    """As few as possible, entered in the shadow; nothing when not even all would do."""
    trial = shadow.copy()
    taken: dict[int, Offer] = {}
    for offer in offers:
        if not _of_use(offer.job.placement, request):
            continue
        _enter(trial, offer, taken.get(offer.job.id))
        taken[offer.job.id] = offer
        if place(trial, request) is not None:
            break
    else:
        return []
    needed = _without_the_needless(shadow, request, list(taken.values()))
    for offer in needed:
        _enter(shadow, offer, None)
    return needed


def _without_the_needless(shadow: Cluster, request: Request, offers: list[Offer]) -> list[Offer]:
    """Leave out whoever need not have been asked, the first who were thought of first."""
    needed = offers
    for offer in offers[:-1]:
        fewer = [each for each in needed if each is not offer]
        trial = shadow.copy()
        for each in fewer:
            _enter(trial, each, None)
        if place(trial, request) is not None:
            needed = fewer
    return needed


def _enter(ledger: Cluster, offer: Offer, before: Offer | None) -> None:
    """Give back what is offered. One that offered a part before offers the whole now."""
    placement = offer.job.placement
    assert placement is not None
    if before is not None and before.keeps is not None:
        kept = _least_of(placement, before.keeps)
        ledger.release(kept)
        return
    ledger.release(placement)
    if offer.keeps is not None:
        ledger.take(_least_of(placement, offer.keeps))


def _least_of(placement: Placement, keeps: Request) -> Placement:
    """Of what a job has, what it keeps when it goes on with fewer GPUs."""
    gpus = elastic.count(keeps)
    takes, seen = [], 0
    for take in placement.takes:
        if take.type == GPU:
            seen += 1
            if seen > gpus:
                continue
        takes.append(take)
    return Placement(placement.node, tuple(takes))


def _of_use(placement: Placement | None, request: Request) -> bool:
    """Whether it holds anything of what is wanted, on a machine that will do."""
    if placement is None:
        return False
    wanted = {GPU} if request.gpu_amount else set()
    wanted |= {"cpu"} if request.cpus else set()
    wanted |= {"mem"} if request.memory else set()
    wanted |= {name for name, _ in request.named}
    return request.exclusive or any(
        take.type in wanted for part in placement.parts for take in part.takes
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
            short = device.memory_free - device.stranger_memory < 0
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
