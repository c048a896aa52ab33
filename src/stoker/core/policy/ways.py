"""How a job may be started now: what to ask the ledger for, the best first."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core.estimate import epoch_on, known
from stoker.core.job import Job
from stoker.core.policy import elastic
from stoker.core.request import Request
from stoker.core.state import State
from stoker.core.units import THOUSAND


def ways(state: State, job: Job, request: Request) -> list[Request]:
    """What would do for a job, the best first; for most jobs, just what they ask for."""
    found = elastic.sizes(state, job, request)
    if state.tells_apart():
        return [each for size in found for each in _by_speed(state, job, size)]
    return found


def _by_speed(state: State, job: Job, request: Request) -> list[Request]:
    """One of those models first on which its like were measured to be fast, then any other."""
    ask, family = request.gpus, known(state.rest.families, job, state.spec(job))
    if ask is None or not ask.amount or not family.compared:
        return [request]
    gpus, kinds = -(-ask.amount // THOUSAND) * request.machines, ask.kinds
    seconds = {
        model: epoch_on(family, gpus, model)[0] or 0.0
        for model in sorted({pace.model for pace in family.paces})
        if not kinds or any(kind in model.lower() for kind in kinds)
    }
    fastest = sorted(seconds, key=lambda model: seconds[model])
    chosen = [replace(ask, model=model.lower(), models=()) for model in fastest]
    return [*(replace(request, gpus=each) for each in chosen), request]
