"""Expected runtime of a job on each GPU model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from stoker.core.measurement.estimator import (
    NO_GPU,
    acceptable_models,
    epoch_seconds_on,
    profile_key,
    restart_cost,
)
from stoker.core.model.job import Job
from stoker.core.model.profile import EMPTY_PROFILE, JobProfile
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.model.units import THOUSAND
from stoker.core.policies.ranking import remaining_time
from stoker.core.state.state import State


class ExpectedRuntime(Struct, frozen=True):
    """Expected runtime of one job."""

    profile: str
    gpus: int
    seconds: dict[str, float]
    """Remaining seconds by GPU model; models on which the job cannot run are missing."""
    restart: float
    """Seconds lost by a restart."""


class ThroughputModel:
    """Expected runtimes at one time.

    Derived from: profiles of the state, GPUs that are in service.
    Invalidated by: any event; it is made for one plan.
    Cost: one pass over all devices and profiles.
    """

    def __init__(self, state: State, now: float) -> None:
        self.state, self.now = state, now
        self.supply: dict[str, float] = {}
        """GPUs in service by model."""
        for node in state.cluster.nodes.values():
            for gpu in node.types.get(GPU, ()):
                if node.unavailable_reason is None and gpu.drained is None and not gpu.removed:
                    model = gpu.facts.model or NO_GPU
                    self.supply[model] = self.supply.get(model, 0.0) + 1.0
        self.gpus = sum(self.supply.values())
        self._typical = typical_ratios(state.record.profiles.values())

    def runtime_of(self, job: Job, request: ResourceRequest) -> ExpectedRuntime:
        """Return the expected runtime of a job from now on."""
        state = self.state
        key, gpu_request = profile_key(job, state.spec(job)), request.gpus
        left = remaining_time(state.ranking_input(job), self.now).seconds
        profile = state.record.profiles.get(key, EMPTY_PROFILE)
        restart = restart_cost(profile)
        if gpu_request is None or not gpu_request.amount:
            return ExpectedRuntime(key, 0, {NO_GPU: left}, restart)
        gpus = -(-gpu_request.amount // THOUSAND) * request.node_count
        models = list(acceptable_models(self.supply, gpu_request.allowed_models))
        ratios = model_ratios(profile, gpus, models, self._typical)
        return ExpectedRuntime(
            key, gpus, {model: left * ratio for model, ratio in ratios.items()}, restart
        )


def typical_ratios(profiles: Iterable[JobProfile]) -> dict[str, float]:
    """Return the time on each model relative to the fastest, the median of all profiles."""
    ratios: dict[str, list[float]] = {}
    for profile in profiles:
        if not profile.has_several_models:
            continue
        by_count: dict[int, dict[str, float]] = {}
        for measured in profile.epoch_times:
            by_count.setdefault(measured.gpus, {})[measured.model] = measured.epoch
        for seconds in by_count.values():
            for model, epoch in seconds.items() if len(seconds) > 1 else ():
                ratios.setdefault(model, []).append(epoch / min(seconds.values()))
    return {model: _median(values) for model, values in ratios.items()}


def model_ratios(
    profile: JobProfile, gpus: int, models: list[str], typical: Mapping[str, float]
) -> dict[str, float]:
    """Return the time on each model, relative to the fastest measured one.

    On a model that was not measured for the profile, the typical ratio holds; a model that was
    measured for none counts as the fastest, so that it is tried.
    """
    measured_models = {entry.model for entry in profile.epoch_times if entry.model in models}
    measured = {
        model: epoch
        for model in sorted(measured_models)
        if (epoch := epoch_seconds_on(profile, gpus, model)[0])
    }
    fastest = min(measured.values(), default=1.0)
    scales = [seconds / fastest / typical.get(model, 1.0) for model, seconds in measured.items()]
    scale = _median(scales) if scales else 1.0
    return {
        model: measured[model] / fastest if model in measured else scale * typical.get(model, 1.0)
        for model in models
    }


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]  # `statistics` takes long to import
