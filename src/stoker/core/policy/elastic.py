"""How many GPUs an elastic job has: as many as repay what a restart costs."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from msgspec.structs import replace

from stoker.core import estimate
from stoker.core.cluster import Cluster
from stoker.core.job import Job
from stoker.core.policy.place import place
from stoker.core.request import GPU, Request
from stoker.core.state import State
from stoker.core.units import THOUSAND

WORTHWHILE = 0.10
"""A change must save this share of the time that is left."""
MOST = 1 << 20
"""More GPUs than anybody has."""
LEAST_GAIN = 10.0
"""And so many seconds: nobody wants a restart for less."""
EFFICIENT = 0.6
"""Each of several GPUs must do at least so much of what one alone does."""


def count(request: Request) -> int:
    """Whole GPUs asked for."""
    return request.gpus.amount // THOUSAND if request.gpus is not None else 0


def sized(request: Request, gpus: int) -> Request:
    """The same request for another number of GPUs; more than the least, where nobody is."""
    ask = request.gpus
    if ask is None or ask.most is None:
        return request
    amount = gpus * THOUSAND
    return replace(request, gpus=replace(ask, amount=amount, idle=amount > ask.amount))


def sizes(state: State, job: Job, request: Request) -> list[Request]:
    """What an elastic job may start with now, the best first; any other job, what it asks for."""
    ask = request.gpus
    if ask is None or ask.most is None or request.machines > 1:
        return [request]
    least = ask.amount // THOUSAND
    most = min(_most(state, request), _left_in_queue(state, job))
    wanted = least
    if job.progress is not None and job.progress.gpus:
        wanted = job.progress.gpus
    elif len(state.line) <= 1:
        wanted = _best_known(state, job, least, most)
    fitting = [n for n in _ladder(least, most) if n <= wanted]
    return [sized(request, n) for n in reversed(fitting)] or [request]


def _most(state: State, request: Request) -> int:
    """As many as it may have, and a machine has at all."""
    assert request.gpus is not None
    largest = max(
        (len(node.types.get(GPU, ())) for node in state.cluster.nodes.values()), default=0
    )
    return min((request.gpus.most or 0) // THOUSAND, largest)


def _left_in_queue(state: State, job: Job) -> int:
    """How many GPUs its queue has left for it, with those that it holds now."""
    left = state.gpus_left(state.spec(job).queue)
    held = job.placement.gpu_amount if job.placement is not None else 0
    if left is None:
        left = 0.0
    return int((left + held) // THOUSAND) if left != inf else MOST


def _ladder(least: int, most: int) -> list[int]:
    """The numbers of GPUs that are tried: each about twice the one before."""
    found = [least] if least else [1]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    if found[-1] < most:
        found.append(most)
    return found


def _best_known(state: State, job: Job, least: int, most: int) -> int:
    """The number of GPUs, among those that were measured, that is fastest without waste."""
    spec = state.spec(job)
    family = estimate.known(state.rest.families, job, spec)
    _, model = estimate.likely_hardware(state.cluster, job, spec, family)
    base, _ = estimate.epoch_on(family, least, model)
    best, fastest = least, base or 0.0
    for pace in sorted(family.paces, key=lambda pace: pace.gpus):
        if base is None or pace.model != model or not least < pace.gpus <= most:
            continue
        faster = base / pace.epoch if pace.epoch else 0.0
        if faster * least / pace.gpus >= EFFICIENT and pace.epoch < fastest:
            best, fastest = pace.gpus, pace.epoch
    return best


def spare(state: State, job: Job) -> Request | None:
    """The least that a running elastic job can go on with, if it has more and time to go on."""
    spec, placement = state.spec(job), job.placement
    ask = spec.request.gpus
    if ask is None or ask.most is None or placement is None or placement.more:
        return None
    if not (job.progress is not None and job.progress.epochs > job.progress.since):
        return None  # it has not been given the time to show what it does with them
    if len(placement.names(GPU)) * THOUSAND <= ask.amount:
        return None
    family = estimate.known(state.rest.families, job, spec)
    at = job.progress.counted_at or 0.0
    left = estimate.estimate(state.rest.families, state.cluster, job, spec, at).remaining_seconds
    if left is not None and left < estimate.restart_cost(family):
        return None
    return state.effective(job, spec)


def grown(
    state: State, shadow: Cluster, jobs: list[Job], at: float
) -> Iterator[tuple[Job, int, str]]:
    """Elastic jobs that are over sooner, all told, when they go on with more GPUs."""
    for job in sorted(jobs, key=lambda job: (-state.priority(job), job.order)):
        placement, progress, spec = job.placement, job.progress, state.spec(job)
        ask = spec.request.gpus
        if ask is None or ask.most is None or placement is None or placement.more:
            continue
        if progress is None or not progress.listening or progress.epochs <= progress.since:
            continue
        better = _worth(state, job, at)
        if better is None:
            continue
        gpus, saved = better
        trial = shadow.shadow()
        trial.release(placement)
        there = place(trial, sized(state.effective(job, spec), gpus))
        if there is not None:
            shadow.release(placement)
            shadow.take(there)
            yield job, gpus, f"with {gpus} GPUs it is done {_span(saved)} sooner"


def _worth(state: State, job: Job, at: float) -> tuple[int, float] | None:
    """The next number of GPUs, and the seconds that it saves, if that repays the restart."""
    spec, placement = state.spec(job), job.placement
    assert placement is not None
    family = estimate.known(state.rest.families, job, spec)
    now, model = estimate.hardware(state.cluster, placement)
    pace = family.pace(now, model)
    outlook = estimate.estimate(state.rest.families, state.cluster, job, spec, at)
    left = outlook.remaining_seconds
    if pace is None or left is None:
        return None
    cost = estimate.restart_cost(family)
    most = min(_most(state, spec.request), _left_in_queue(state, job))
    best: tuple[int, float] | None = None
    for gpus in _ladder(now, most)[1:]:
        seconds, measured = estimate.epoch_on(family, gpus, model)
        if seconds is None or pace.epoch / max(seconds, 1e-9) * now / gpus < EFFICIENT:
            break
        saved = left * (1 - seconds / pace.epoch) - cost
        if saved > max(left * WORTHWHILE, cost, LEAST_GAIN) and (best is None or saved > best[1]):
            best = (gpus, saved)
        if not measured:
            break  # one step at a time into what nobody has measured
    return best


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
