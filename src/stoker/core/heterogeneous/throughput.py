"""Expected runtime of a job on each GPU model, and the measured interference of two profiles."""

from __future__ import annotations

from msgspec import Struct

from stoker.core.heterogeneous import matching
from stoker.core.measurement.estimator import (
    NO_GPU,
    colocation_key,
    epoch_seconds_on,
    profile_key,
    restart_cost,
)
from stoker.core.model.job import Job
from stoker.core.model.profile import JobProfile
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.model.units import THOUSAND
from stoker.core.policies.ranking import remaining_time
from stoker.core.state.state import State

DEFAULT_INTERFERENCE = 0.9
"""Part of its speed that a job keeps beside an unmeasured profile: high enough to be tried."""


class ExpectedRuntime(Struct, frozen=True):
    """Expected runtime of one job."""

    profile: str
    gpus: int
    seconds: dict[str, float]
    """Remaining seconds by GPU model."""
    restart: float
    """Seconds lost by a restart."""


class ThroughputModel:
    """Expected runtimes and interference at one time.

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
        self.typical = matching.typical_speeds(
            seconds
            for profile in state.record.profiles.values()
            for seconds in _seconds_by_model(profile)
        )
        self.gpus = sum(self.supply.values())

    def runtime_of(self, job: Job, request: ResourceRequest) -> ExpectedRuntime:
        """Return the expected runtime of a job from now on."""
        state, spec = self.state, self.state.spec(job)
        left = remaining_time(state.ranking_input(job), self.now).seconds
        key, gpu_request = profile_key(job, spec), request.gpus
        profile = state.record.profiles.get(key) or JobProfile()
        restart = restart_cost(profile)
        if gpu_request is None or not gpu_request.amount:
            return ExpectedRuntime(key, 0, {NO_GPU: left}, restart)
        gpus, kinds = (
            -(-gpu_request.amount // THOUSAND) * request.node_count,
            gpu_request.allowed_models,
        )
        ratios = self._model_ratios(profile, gpus, kinds)
        return ExpectedRuntime(
            key, gpus, {model: left * ratio for model, ratio in ratios.items()}, restart
        )

    def _model_ratios(
        self, profile: JobProfile, gpus: int, kinds: tuple[str, ...]
    ) -> dict[str, float]:
        """Return the time on each allowed model, relative to the fastest measured one."""
        models = [
            model
            for model in self.supply
            if not kinds or any(kind in model.lower() for kind in kinds)
        ]
        measured_models = {entry.model for entry in profile.epoch_times if entry.model in models}
        measured = {
            model: epoch
            for model in sorted(measured_models)
            if (epoch := epoch_seconds_on(profile, gpus, model)[0])
        }
        seconds = matching.expected_seconds(measured, self.typical, models)
        seconds = seconds or {model: self.typical.get(model, 1.0) for model in models}
        fastest = min(measured.values(), default=min(seconds.values(), default=1.0))
        return {model: time / fastest for model, time in seconds.items()}


def interference(state: State, profile_name: str, other: str, model: str) -> float:
    """Return the part of its speed that a profile keeps beside another one."""
    profile = state.record.profiles.get(profile_name)
    if profile is None:
        return DEFAULT_INTERFERENCE
    return profile.interference.get(colocation_key(model, other), DEFAULT_INTERFERENCE)


def _seconds_by_model(profile: JobProfile) -> list[dict[str, float]]:
    """Return the epoch seconds by model, one dictionary per number of GPUs."""
    if not profile.has_several_models:
        return []
    by_gpus: dict[int, dict[str, float]] = {}
    for measured in profile.epoch_times:
        by_gpus.setdefault(measured.gpus, {})[measured.model] = measured.epoch
    return list(by_gpus.values())
