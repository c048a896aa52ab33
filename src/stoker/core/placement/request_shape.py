"""The shape of a request: what of it decides how nodes for it are found."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core.model.resources import CPU, MEMORY, DeviceFacts, GpuRequest, ResourceRequest
from stoker.core.model.units import THOUSAND

GPU_BUCKET = THOUSAND // 4
"""Thousandths of a GPU: requests are grouped by quarters of a GPU."""
NOMINAL_MEMORY_SHARE = 0.95
"""Share of the requested GPU memory that suffices: a 24 GB GPU may report a little less."""


def gpus_needed(request: ResourceRequest) -> int:
    """Return the amount of GPUs that a node must have for (a part of) this request, at least."""
    gpus = request.gpus
    if gpus is None or gpus.shareable or gpus.fixed_share is not None or request.exclusive:
        return 0
    return gpus.amount


def request_amounts(request: ResourceRequest) -> tuple[int, ...]:
    """Return the requested amounts: GPUs of all parts, cores, memory, named resources."""
    gpus = (request.gpu_amount,) if request.gpu_amount else ()
    return (*gpus, *(amount for _, amount in non_gpu_amounts(request)))


def request_shape(request: ResourceRequest) -> ResourceRequest:
    """Return a request without its amounts, equal for requests that differ in nothing else."""
    gpus = request.gpus
    return replace(
        request,
        gpus=replace(gpus, amount=0) if gpus is not None and gpus.amount else None,
        cpus=min(request.cpus, 1),
        memory=min(request.memory, 1),
        named=tuple((name, 1) for name, amount in request.named if amount),
    )


def non_gpu_amounts(request: ResourceRequest) -> list[tuple[str, int]]:
    """Return the requested amounts other than GPUs, by resource type."""
    amounts = [(CPU, request.cpus), (MEMORY, request.memory), *request.named]
    return [(type, amount) for type, amount in amounts if amount]


def names_hardware(request: ResourceRequest) -> bool:
    """Whether a request names nodes or devices."""
    gpus = request.gpus
    if request.nodes or request.not_nodes or request.queue_devices:
        return True
    if gpus is None:
        return False
    return bool(gpus.required or gpus.prefer or gpus.avoid or gpus.allowed or gpus.reserved)


def is_amount_only(request: ResourceRequest) -> bool:
    """Whether free amounts and GPU models alone decide where a request fits."""
    if request.exclusive or names_hardware(request):
        return False
    gpus = request.gpus
    if gpus is None:
        return True
    shares = gpus.shareable or gpus.fixed_share is not None or gpus.memory is not None
    return not (shares or gpus.ignore_foreign_use)


def matches_model(facts: DeviceFacts, gpus: GpuRequest) -> bool:
    """Whether a GPU has the requested model and memory size."""
    model = (facts.model or "").lower()
    if gpus.model and gpus.model not in model:
        return False
    if gpus.models and not any(name in model for name in gpus.models):
        return False
    return not (gpus.min_vram and (facts.memory or 0) < gpus.min_vram * NOMINAL_MEMORY_SHARE)


def gpu_bucket_of(request: ResourceRequest | None) -> int:
    """Return `gpus_needed` in steps of GPU_BUCKET."""
    return gpus_needed(request) // GPU_BUCKET * GPU_BUCKET if request is not None else 0


def undelegable_reason(request: ResourceRequest, takes_gangs: bool) -> str | None:
    """Return why a delegated node cannot run this request, or None.

    It takes all parts of a gang or none: one part beside others of other nodes is not possible.
    """
    gpus = request.gpus
    if request.in_gang or (request.node_count > 1 and not takes_gangs):
        return "takes only jobs that run on one node; pilots can run others"
    if request.exclusive:
        return "gives no job a node of its own; a pilot can"
    if gpus is not None and (gpus.amount % THOUSAND or gpus.fixed_share is not None):
        return "gives whole GPUs only; a pilot can share them"
    return None


def delegated_request(request: ResourceRequest) -> ResourceRequest:
    """Return a request as a delegated node serves it.

    A job that may share GPUs gets whole ones there, and their memory is not known.
    """
    gpus = request.gpus
    if gpus is None or not (gpus.shareable or gpus.memory):
        return request
    return replace(request, gpus=replace(gpus, shareable=False, memory=None, on_idle_gpus=False))
