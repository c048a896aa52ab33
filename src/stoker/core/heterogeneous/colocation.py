"""Co-location: jobs share a GPU only if they make clearly more progress than in turns.

Interference is measured when two jobs share a GPU, or imported. An unmeasured pair may share if
its memory fits, until the first epochs are measured; if sharing does not pay, the next plan
separates the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from msgspec.structs import replace

from stoker.core.measurement.estimator import colocation_key, hardware, profile_key
from stoker.core.model.job import Job
from stoker.core.model.profile import EMPTY_PROFILE
from stoker.core.model.resources import GPU, Placement, ResourceRequest
from stoker.core.state.state import State

MIN_GAIN = 0.2
"""Additional progress of a GPU, relative to one job alone, for which a job may join others, and the
share by which another placement must cost less than the preferred one."""

GpuKey = tuple[str, str]
"""Node and name of a GPU."""


def colocation_gain(state: State, profile: str, others: Iterable[str], model: str) -> float:
    """Return the additional progress of a GPU when a job joins those of other profiles on it."""
    speed, loss = 1.0, 0.0
    for other in others:
        beside = _interference(state, profile, other, model)
        other_speed = _interference(state, other, profile, model)
        if beside <= 0.0 or other_speed <= 0.0:  # measured not to fit together
            return -inf
        speed *= beside
        loss += 1.0 - other_speed
    return speed - loss


def _interference(state: State, profile_name: str, other: str, model: str) -> float:
    """Return the part of its speed that a profile keeps beside another; all of it if unmeasured."""
    profile = state.record.profiles.get(profile_name, EMPTY_PROFILE)
    return profile.interference.get(colocation_key(model, other), 1.0)


def devices_of(placement: Placement) -> set[GpuKey]:
    """Return the GPUs of a placement."""
    return {(part.node, name) for part in placement.parts for name in part.names(GPU)}


def without_bad_sharers(state: State, job: Job, request: ResourceRequest) -> ResourceRequest:
    """Return a request for idle GPUs if sharing with a job in the cluster is known not to pay."""
    gpus = request.gpus
    if gpus is None or not gpus.shareable or gpus.on_idle_gpus or not state.sharing:
        return request
    if all(_may_pay(state, job, sharer) for sharer in state.sharing.values()):
        return request
    return replace(request, gpus=replace(gpus, on_idle_gpus=True))


def _may_pay(state: State, job: Job, sharer: Job) -> bool:
    """Whether sharing a GPU with a running job pays, as far as it was measured."""
    if sharer.placement is None:
        return True
    model = hardware(state.cluster, sharer.placement)[1]
    profile, other = profile_key(job, state.spec(job)), profile_key(sharer, state.spec(sharer))
    return colocation_gain(state, profile, [other], model) > MIN_GAIN
