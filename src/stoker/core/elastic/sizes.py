"""Sizes of elastic jobs: how many GPUs one may start with, have at most, or shrink to."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core.elastic.allocation import gpu_steps
from stoker.core.measurement import estimator
from stoker.core.model.job import Job
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.model.units import THOUSAND
from stoker.core.state.state import State


def gpu_count(request: ResourceRequest) -> int:
    """Return the whole GPUs requested per node."""
    return request.gpus.amount // THOUSAND if request.gpus is not None else 0


def resized(request: ResourceRequest, gpus: int, gpus_per_node: int) -> ResourceRequest:
    """Return an elastic request for a number of GPUs, of which more than the minimum are idle ones.

    More GPUs than a node has are whole nodes.
    """
    gpu_request = request.gpus
    if gpu_request is None or gpu_request.max_amount is None:
        return request
    nodes = gpus // gpus_per_node if gpus_per_node and gpus > gpus_per_node else 1
    on_idle_gpus = gpus * THOUSAND > gpu_request.amount
    amount = gpus // nodes * THOUSAND
    return replace(
        request, gpus=replace(gpu_request, amount=amount, on_idle_gpus=on_idle_gpus),
        node_count=nodes,
    )  # fmt: skip


def gpus_per_node(state: State) -> int:
    """Return the number of GPUs of the largest node."""
    nodes = (node for node in state.cluster.all_nodes() if not node.delegated)
    return max((len(node.types.get(GPU, ())) for node in nodes), default=0)


def candidate_sizes(state: State, job: Job, request: ResourceRequest) -> list[ResourceRequest]:
    """Return the requests with which a job may start now, largest first."""
    gpu_request = request.gpus
    if gpu_request is None or gpu_request.max_amount is None or request.node_count > 1:
        return [request]
    min_gpus, per_node = gpu_count(request), gpus_per_node(state)
    gpus = state.memory.elastic_targets.get(job.id) or job.progress.gpus or min_gpus
    steps = gpu_steps(max(min_gpus, 1), min(max_gpus(state, job), gpus), per_node)
    return [resized(request, step, per_node) for step in reversed(steps) if step <= gpus] or [
        request
    ]


def max_gpus(state: State, job: Job) -> int:
    """Return the most GPUs of an elastic job: of one node, unless it can use several, by quota."""
    spec, held = state.spec(job), job.placement.gpu_amount if job.placement is not None else 0
    assert spec.request.gpus is not None
    allowed = spec.request.gpus.max_amount or 0
    if spec.training is None or not spec.training.distributed:
        allowed = min(allowed, gpus_per_node(state) * THOUSAND)
    return int(min(allowed, state.quotas.max_gpus(spec, held)) // THOUSAND)


def min_request(state: State, job: Job) -> ResourceRequest | None:
    """Return the minimum of a running elastic job if it holds more and would still run a while."""
    spec, placement = state.spec(job), job.placement
    gpu_request = spec.request.gpus
    if gpu_request is None or gpu_request.max_amount is None or placement is None:
        return None
    if spec.request.node_count > 1:
        return None
    if not job.progress.has_finished_epoch:
        return None  # its speed with this number of GPUs has not been measured yet
    if estimator.hardware(state.cluster, placement)[0] * THOUSAND <= gpu_request.amount:
        return None
    profiles = state.record.profiles
    at = job.progress.epoch_started_at or 0.0
    left = estimator.estimate(profiles, state.cluster, job, spec, at).remaining_seconds
    profile = estimator.profile_of(profiles, job, spec)
    if left is not None and left < estimator.restart_cost(profile):
        return None
    return state.effective_request(job, spec)
