"""GPUs shared by memory: the reservation of each job, and the recovery after out-of-memory."""

from __future__ import annotations

from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.node import Device
from stoker.core.measurement.estimator import MEMORY_MARGIN, allocated_gpus, with_margin
from stoker.core.model.job import Job, Progress
from stoker.core.model.profile import JobProfile
from stoker.core.model.resources import GPU, SHARED_SLOT, DeviceAllocation, GpuRequest, Placement
from stoker.core.model.spec import Spec
from stoker.core.model.units import THOUSAND

OOM_GROWTH = 1.5
"""Factor by which the reservation of a job grows after it ran out of memory."""


def with_reserved_memory(gpus: GpuRequest, progress: Progress, profile: JobProfile) -> GpuRequest:
    """Return the request of a job that may share GPUs, with the memory to reserve.

    A job of which no memory use is known gets whole GPUs.
    """
    memory = gpus.memory
    if profile.peak is not None:
        memory = with_margin(profile.peak)
    if progress.reserve is not None:
        memory = progress.reserve if memory is None else max(progress.reserve, memory)
    shareable = memory is not None and not progress.exclusive_only
    return replace(gpus, memory=memory, shareable=shareable)


def is_preemptible(job: Job, spec: Spec) -> bool:
    """Whether a running job can be stopped so that it resumes later."""
    can_resume = job.progress.accepts_stop or spec.requeueable or spec.early_signal is not None
    return can_resume and not spec.non_preemptible


def adjusted_placement(job: Job, spec: Spec) -> Placement | None:
    """Return the placement with as much memory as was measured; None if that changes nothing.

    More is reserved at once, less only after a whole epoch.
    """
    gpus, progress, placement = spec.request.gpus, job.progress, job.placement
    if gpus is None or not gpus.shareable or placement is None:
        return None
    if progress.peak is None or progress.exclusive_only or spec.request.exclusive:
        return None
    if any(take.is_pooled for take in placement.allocations):
        return None
    needed, held = with_margin(progress.peak), reserved_memory(placement)
    whole = any(take.type == GPU and take.amount == THOUSAND for take in placement.allocations)
    if whole and not progress.has_finished_epoch:
        return None
    is_too_large = progress.has_finished_epoch and needed < held * (1 - MEMORY_MARGIN / 2)
    if not whole and needed <= held and not is_too_large:
        return None
    return _with_memory(placement, needed)


def _with_memory(placement: Placement, memory: int) -> Placement:
    allocations = tuple(
        DeviceAllocation(GPU, held.device, SHARED_SLOT, memory) if held.type == GPU else held
        for held in placement.allocations
    )
    others = tuple(_with_memory(part, memory) for part in placement.other_parts)
    return replace(placement, allocations=allocations, other_parts=others)


def reserved_memory(placement: Placement) -> int:
    """Return the MiB reserved on each GPU of a placement."""
    return max((take.memory for take in placement.allocations if take.type == GPU), default=0)


def gpus_of(cluster: Cluster, placement: Placement | None) -> list[Device]:
    """Return the GPUs of a placement on all nodes, except those of pools."""
    gpus = allocated_gpus(cluster, placement) if placement is not None else ()
    return [device for take, device in gpus if device is not None and not take.is_pooled]


class OomRecovery(Struct, frozen=True):
    """How a job is tried again after it ran out of GPU memory."""

    progress: Progress
    words: str
    learned: int | None = None
    """MiB that all jobs of its profile are now known to need."""


def after_oom(job: Job, spec: Spec, cluster: Cluster, sharers: list[Job]) -> OomRecovery | None:
    """Return a recovery with more memory or exclusive GPUs; None: it had all there is.

    `sharers`: the jobs that share its GPUs now.
    """
    gpus, placement = spec.request.gpus, job.placement
    if gpus is None or not gpus.shareable or placement is None:
        return None
    progress = replace(job.progress, oom_count=job.progress.oom_count + 1)
    alone, devices = replace(progress, exclusive_only=True), gpus_of(cluster, placement)
    if any(device.removed for device in devices):  # how much memory they had is no longer known
        words = "CUDA out of memory; requeued with a GPU of its own"
        return None if progress.exclusive_only else OomRecovery(alone, words)
    total = min((device.facts.memory or 0 for device in devices), default=0)
    whole = not any(device.sharers for device in devices)
    held, peak = total if whole else reserved_memory(placement), progress.peak or 0
    more = min(max(int(held * OOM_GROWTH), with_margin(peak)), total)
    if progress.shared_gpu and not progress.exclusive_only:
        if not (progress.exceeded_reservation or peak > held):
            return _after_shared_oom(alone, sharers, more)
        if progress.oom_count > 1:
            words = "CUDA out of memory again; requeued with a GPU of its own"
            return OomRecovery(alone, words, learned=more)
    if more > held:
        words = f"CUDA out of memory; requeued with {more} MiB"
        return OomRecovery(replace(progress, reserve=more), words, learned=more)
    gpus_of_nodes = (node.types.get(GPU, ()) for node in cluster.nodes.values())
    if 0 < total < max((device.facts.memory or 0 for device in chain(*gpus_of_nodes)), default=0):
        words = f"CUDA out of memory; requeued for a GPU with more than {total} MiB"
        return OomRecovery(replace(progress, reserve=total + 1), words, learned=total + 1)
    return None


def _after_shared_oom(alone: Progress, sharers: list[Job], more: int) -> OomRecovery:
    """Return exclusive GPUs for a job that was not measured beyond its own reservation.

    If the other jobs kept to their reservations too, the job must have needed more than it had.
    """
    words = "CUDA out of memory on a shared GPU; requeued with a GPU of its own"
    exceeded = any(job.progress.exceeded_reservation for job in sharers)
    if exceeded or not sharers:
        return OomRecovery(alone, words)
    return OomRecovery(replace(alone, reserve=more), words, learned=more)
