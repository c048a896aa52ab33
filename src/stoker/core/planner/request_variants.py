"""The requests with which a job may start now: sizes of an elastic job, models of GPU."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core.elastic import sizes as elastic
from stoker.core.heterogeneous.colocation import without_bad_sharers
from stoker.core.measurement.estimator import acceptable_models, epoch_seconds_on, profile_of
from stoker.core.model.job import Job
from stoker.core.model.resources import ResourceRequest
from stoker.core.model.units import THOUSAND
from stoker.core.state.state import State


def request_variants(state: State, job: Job, request: ResourceRequest) -> list[ResourceRequest]:
    """Return the requests that are enough for a job, the best first; for most jobs only one."""
    if not state.distinguishes_models:
        return elastic.candidate_sizes(state, job, request)
    request = without_bad_sharers(state, job, request)
    sizes = elastic.candidate_sizes(state, job, request)
    return [variant for size in sizes for variant in _fastest_model_first(state, job, size)]


def _fastest_model_first(state: State, job: Job, request: ResourceRequest) -> list[ResourceRequest]:
    """Return the request for each measured model, the fastest first, and then for any model."""
    ask, profile = request.gpus, profile_of(state.record.profiles, job, state.spec(job))
    if ask is None or not ask.amount or not profile.has_several_models:
        return [request]
    gpus = -(-ask.amount // THOUSAND) * request.node_count
    measured = sorted({time.model for time in profile.epoch_times})
    fastest = sorted(
        acceptable_models(measured, ask.allowed_models),
        key=lambda model: epoch_seconds_on(profile, gpus, model)[0] or 0.0,
    )
    chosen = [replace(ask, model=model.lower(), models=()) for model in fastest]
    return [*(replace(request, gpus=gpu_request) for gpu_request in chosen), request]
