"""How many GPUs an elastic job has: as many as repay what a restart costs."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from msgspec.structs import replace

from stoker.core import estimate
from stoker.core.cluster import Cluster
from stoker.core.job import Job, Spec
from stoker.core.policy.allot import rungs
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


def sized(request: Request, gpus: int, machine: int) -> Request:
    """The same request for another number of GPUs; more than the least, where nobody is.

    More than a machine has are so many whole machines.
    """
    ask = request.gpus
    if ask is None or ask.most is None:
        return request
    machines = gpus // machine if machine and gpus > machine else 1
    amount = gpus // machines * THOUSAND
    ask = replace(ask, amount=amount, idle=gpus * THOUSAND > ask.amount)
    return replace(request, gpus=ask, machines=machines)


def machine(state: State) -> int:
    """How many GPUs the largest machine has."""
    return max(
        (len(alike.first().types.get(GPU, ())) for _, alike in state.cluster.alike()), default=0
    )


def sizes(state: State, job: Job, request: Request) -> list[Request]:
    """What an elastic job may start with now, the best first; any other job, what it asks for."""
    ask = request.gpus
    if ask is None or ask.most is None or request.machines > 1:
        return [request]
    least = ask.amount // THOUSAND
    reach = min(most(state, state.spec(job)), left_in_queue(state, job))
    wanted = least
    if dealt := state.allotted.get(job.id):
        wanted = dealt
    elif job.progress is not None and job.progress.gpus:
        wanted = job.progress.gpus
    elif len(state.line) <= 1:
        wanted = _best_known(state, job, least, reach)
    largest = machine(state)
    fitting = [n for n in _ladder(least, reach, largest) if n <= wanted]
    return [sized(request, n, largest) for n in reversed(fitting)] or [request]


def most(state: State, spec: Spec) -> int:
    """As many as it may have and a machine has at all; of several, if it was made for that."""
    assert spec.request.gpus is not None
    allowed = (spec.request.gpus.most or 0) // THOUSAND
    if spec.training is not None and spec.training.distributed:
        return allowed
    return min(allowed, machine(state))


def left_in_queue(state: State, job: Job) -> int:
    """How many GPUs its queue has left for it, with those that it holds now."""
    left = state.gpus_left(state.spec(job).queue)
    held = job.placement.gpu_amount if job.placement is not None else 0
    if left is None:
        left = 0.0
    return int((left + held) // THOUSAND) if left != inf else MOST


def _ladder(least: int, most: int, machine: int) -> list[int]:
    """The numbers of GPUs that are tried: each about twice the one before, or whole machines."""
    found = [least] if least else [1]
    while found[-1] * 2 <= min(most, machine):
        found.append(found[-1] * 2)
    if found[-1] < min(most, machine):
        found.append(min(most, machine))
    return found + [each for each in rungs(found[-1], most, machine)[1:] if machine]


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
    """The least that a running elastic job can go on with, if it has more and enough time left."""
    spec, placement = state.spec(job), job.placement
    ask = spec.request.gpus
    if ask is None or ask.most is None or placement is None or spec.request.machines > 1:
        return None
    if not (job.progress is not None and job.progress.epochs > job.progress.since):
        return None  # it has not been given the time to show what it does with them
    if estimate.hardware(state.cluster, placement)[0] * THOUSAND <= ask.amount:
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
    for job in sorted(jobs, key=lambda job: (-job.priority, job.order)):
        placement, progress, spec = job.placement, job.progress, state.spec(job)
        ask = spec.request.gpus
        if ask is None or ask.most is None or placement is None or spec.request.machines > 1:
            continue
        if progress is None or not progress.listening or progress.epochs <= progress.since:
            continue
        better = _worth(state, job, at)
        if better is None:
            continue
        gpus, saved = better
        trial = shadow.shadow()
        trial.release(placement)
        there = place(trial, sized(state.effective(job, spec), gpus, machine(state)))
        if there is not None:
            shadow.release(placement)
            shadow.take(there)
            yield job, gpus, f"with {gpus} GPUs it ends {span(saved)} sooner"


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
    reach = min(most(state, spec), left_in_queue(state, job))
    best: tuple[int, float] | None = None
    for gpus in _ladder(now, reach, machine(state))[1:]:
        seconds, measured = estimate.epoch_on(family, gpus, model)
        if seconds is None or pace.epoch / max(seconds, 1e-9) * now / gpus < EFFICIENT:
            break
        saved = left * (1 - seconds / pace.epoch) - cost
        if saved > max(left * WORTHWHILE, cost, LEAST_GAIN) and (best is None or saved > best[1]):
            best = (gpus, saved)
        if not measured:
            break  # one step at a time into what nobody has measured
    return best


def span(seconds: float) -> str:
    """A time for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
