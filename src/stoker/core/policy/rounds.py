"""When GPUs are dealt out anew among elastic jobs, and who is asked to change for it.

Where jobs of equal priority make room for each other, elastic ones are not asked one by one. In
rounds, a minute apart at least, `allot` says how many GPUs each of them is to have: those who run
and can stop, and those who wait, whether they are elastic or not. Nothing but what is free and
what the elastic ones hold is dealt out.

Who is to have fewer is asked at once. Who is to have more is asked when its new place is free: if
it never is, it goes on where it is. A job that has just begun is left alone until the next round,
and between rounds only newcomers are dealt something, of what is free. The exception is the only
elastic job while none is pending: no other job could use the free GPUs, so it grows as soon as its
first epoch is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, log2

from stoker.core import estimate
from stoker.core.cluster import Cluster
from stoker.core.events import StopAsked
from stoker.core.job import Job, Progress
from stoker.core.lifecycle import JobState
from stoker.core.policy import elastic
from stoker.core.policy.allot import Share, allot, measured, pace, rungs, stage, work
from stoker.core.policy.ground import by_name
from stoker.core.policy.heads import Heads
from stoker.core.policy.order import LONG_AGO
from stoker.core.policy.place import place
from stoker.core.request import GPU, Request
from stoker.core.state import State
from stoker.core.units import THOUSAND

ROUND = 60.0
"""Seconds between two rounds, and those that an attempt has for itself."""
LOOK_AT = 64
"""So many of those who wait, the first in line first, take part."""

Seat = tuple[int, float, int]
"""Where a job stands in a round: by priority, by its work left, by its order."""


def takes_part(state: State, job: Job) -> bool:
    """Whether an elastic job has as many GPUs as the rounds give it."""
    spec = state.specs[job.spec]
    ask = spec.request.gpus
    if ask is None or ask.most is None or not state.policy(spec.queue).preempts:
        return False
    return spec.request.machines == 1 and _is_plain(state.effective(job, spec))


def _is_plain(request: Request) -> bool:
    """Whether any whole GPUs will do."""
    ask = request.gpus
    if ask is None or ask.kinds or ask.min_vram or ask.share is not None or request.exclusive:
        return False
    return ask.amount > 0 and not ask.amount % THOUSAND and not by_name(request)


def deal(state: State, later: Cluster, at: float, boot: float) -> Iterator[StopAsked]:
    """Work out what everybody is to have, if that is due, and yield who is to have less.

    `later` is the ledger as it will be when all have stopped who were asked to.
    """
    between = state.dealt_at <= at < state.dealt_at + ROUND
    for id in [id for id in state.flexible if id not in state.line]:
        del state.flexible[id]
    if between and not state.flexible and state.deal_at < inf and not _alone(state):
        return
    waiting = [id for id in state.flexible if takes_part(state, state.jobs[id])]
    running = [job for job in state.elastic.values() if takes_part(state, job)]
    if not (waiting or running):
        state.allotted.clear()
        return
    if between:
        state.deal_at = state.dealt_at + ROUND
        running = [job for job in running if _alone(state) and _may_change(state, job, at)]
        if not running and all(id in state.allotted for id in waiting):
            return
    else:
        state.dealt_at, state.deal_at = at, inf
        state.allotted.clear()
        running = [job for job in running if _may_change(state, job, at)]
    machine = elastic.machine(state)
    shares = [_seated(state, job, at) for job in running] + list(_waiting(state, at))
    shares.sort(key=lambda each: each[0])
    gpus = _free(later) + sum(_held(job) for job in running)
    state.allotted |= allot((share for _, share in shares), gpus, machine)
    for job in running:
        now, then = _held(job), state.allotted[job.id]
        if then == now or (then < now and between):
            del state.allotted[job.id]  # jobs shrink in rounds only, so that none flaps
        elif then < now:
            why = (
                f"other jobs use {now - then} of its GPUs better"
                if then
                else "shorter jobs are pending"
            )
            yield _ask(job, why, at, boot, then or None)


def _ask(job: Job, why: str, at: float, boot: float, gpus: int | None) -> StopAsked:
    return StopAsked(at=at, job=job.id, attempt=job.attempt, why=why, boot=boot, gpus=gpus)


def grow(state: State, now: Cluster, at: float, boot: float) -> Iterator[StopAsked]:
    """Yield who is to have more, as far as there is room for it now in this ledger."""
    jobs = [
        (-then, id)
        for id, then in state.allotted.items()
        if (job := state.elastic.get(id)) is not None and _held(job) < then
    ]
    machine = elastic.machine(state) if jobs else 0
    for more, id in sorted(jobs):
        job = state.elastic[id]
        placement, held = job.placement, _held(job)
        if placement is None or not _may_change(state, job, at):
            continue
        request = state.effective(job, state.spec(job))
        most = min(-more, elastic.left_in_queue(state, job))
        now.release(placement)
        for gpus in reversed(rungs(held, most, machine)[1:]):
            there = place(now, elastic.sized(request, gpus, machine)) if 2 * gpus >= most else None
            if there is not None:
                now.take(there)
                state.allotted[id] = gpus
                yield _ask(job, _sooner(state, job, gpus, at), at, boot, gpus)
                break
        else:
            now.take(placement)


def _sooner(state: State, job: Job, gpus: int, at: float) -> str:
    _, share = _seated(state, job, at)
    _, epochs = work(share)
    saved = epochs * (pace(share.paces, share.now) - pace(share.paces, gpus))
    if share.left is None or not share.paces or saved <= 0:
        return f"{gpus} GPUs are free for it"
    return f"with {gpus} GPUs it ends {elastic.span(saved)} sooner"


def sees_to(state: State, job: int) -> bool:
    """Whether one who waits need not ask others for room, since a round does."""
    if job in state.flexible and takes_part(state, state.jobs[job]):
        return True
    if job not in state.allotted:
        return False
    if state.deal_at < inf:
        return True
    stops = (each.progress.stop for each in state.leaving.values() if each.progress is not None)
    return any(stop is not None and stop.by is None for stop in stops)


def _may_change(state: State, job: Job, at: float) -> bool:
    """Whether a running job can be asked now, and has had its time."""
    progress, placement = job.progress, job.placement
    if job.state is not JobState.RUNNING or placement is None or job.started_at is None:
        return False
    if progress is None or not progress.listening or progress.stop is not None:
        return False
    young = 0 <= at - job.started_at < ROUND
    measured_alone = progress.epochs > progress.since and _alone(state)
    if job.id not in state.stoppable or (young and not measured_alone):
        return False
    return all(_is_its_own(state.cluster, part.node, part.names(GPU)) for part in placement.parts)


def _alone(state: State) -> bool:
    """Whether a single elastic job runs and no job is pending."""
    return len(state.elastic) == 1 and not len(state.line)


def _is_its_own(cluster: Cluster, name: str, gpus: list[str]) -> bool:
    """Whether nobody else is on these GPUs, and they are there for whoever comes next."""
    node = cluster.nodes[name]
    cards = [node.by_name[GPU, each] for each in gpus]
    return node.closed is None and not any(
        card.gone or card.drained is not None or card.stranger is not None or card.slivers > 1
        for card in cards
    )


def _held(job: Job) -> int:
    parts = job.placement.parts if job.placement is not None else ()
    return sum(len(part.names(GPU)) for part in parts)


def _free(cluster: Cluster) -> int:
    """Whole GPUs that nobody uses."""
    found = 0
    for _, alike in cluster.alike():
        node = alike.first()
        if node.closed is None:
            found += len(alike.nodes) * sum(
                card.left == THOUSAND
                and not card.gone
                and card.drained is None
                and card.stranger is None
                for card in node.types.get(GPU, ())
            )
    return found


def _waiting(state: State, at: float) -> Iterator[tuple[Seat, Share]]:
    """Those who wait for whole GPUs, as far as nothing else is in their way."""
    for looked, (seat, found, id) in enumerate(Heads(state.line)):
        if looked == LOOK_AT:
            return
        job = state.jobs[id]
        if id in state.promises or state.limit_reached(found):
            continue
        request = state.request(job, found)
        if id in state.flexible and takes_part(state, job):
            where, share = _seated(state, job, at)
        elif _is_plain(request):
            gpus = request.gpu_amount // THOUSAND
            share = Share(id=id, least=gpus, most=gpus)
            where = _seat(state, job, share, at)
        else:
            continue
        yield (where if seat[1] > LONG_AGO else (where[0], -inf, where[2])), share


def _seated(state: State, job: Job, at: float) -> tuple[Seat, Share]:
    """An elastic job: where it stands, and all there is to judge it by."""
    spec = state.spec(job)
    ask, progress = spec.request.gpus, job.progress or Progress()
    assert ask is not None
    now, least = _held(job), ask.amount // THOUSAND
    family = estimate.known(state.rest.families, job, spec)
    total = estimate.epochs_of(job, spec)
    left = paces = None
    if total is not None:
        at_stage = stage(progress.epochs / total)
        known: dict[int, dict[int, float]] = {}
        for when, gpus, seconds in progress.paces:
            known.setdefault(when, {})[gpus] = seconds
        paces = measured(known, at_stage)
        left = float(max(total - progress.epochs, 0))
    if not paces:
        _, model = estimate.likely_hardware(state.cluster, job, spec, family)
        paces = tuple(
            sorted((each.gpus, each.epoch) for each in family.paces if each.model == model)
        )
    if left and paces and now and progress.counted_at is not None:
        left -= min(max(at - progress.counted_at, 0.0) / max(pace(paces, now), 1e-9), 1.0)
    share = Share(
        id=job.id,
        least=least,
        most=max(min(elastic.most(state, spec), elastic.left_in_queue(state, job)), least),
        now=now,
        left=left,
        paces=tuple(each for each in paces if each[0] > 0 and each[1] > 0),
        attained=estimate.attained(job, at) * max(now, least),
        cost=estimate.restart_cost(family),
    )
    return _seat(state, job, share, at), share


def _seat(state: State, job: Job, share: Share, at: float) -> Seat:
    """The shortest work first. Who runs stands in front of those who need about the same."""
    rules = state.policy(state.specs[job.spec].queue)
    if share.least == share.most and share.left is None:
        seconds = estimate.remaining(
            state.rest.families, state.cluster, job, state.specs[job.spec], at
        )
        amount = seconds * share.least if seconds is not None else work(share)[0]
    else:
        amount = work(share)[0]
    level = log2(max(amount, 1.0)) + rules.fair * state.line.handicaps.get(job.user, 0.0)
    if share.now:
        level -= log2(rules.hysteresis)
    return (-job.priority, level, job.order)
