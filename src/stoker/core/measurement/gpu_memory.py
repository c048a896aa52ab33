"""GPUs shared by memory: the reservation of each job, and the recovery after out-of-memory."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.cluster.cluster import Cluster
from stoker.core.measurement.estimator import with_margin
from stoker.core.model.hardware import SHARED_SLOT, DeviceAllocation, Placement
from stoker.core.model.job import Job, Progress
from stoker.core.model.profile import JobProfile
from stoker.core.model.resources import GPU, GpuRequest
from stoker.core.model.spec import Spec
from stoker.core.model.units import THOUSAND

OOM_GROWTH = 1.5
"""Factor by which the reservation of a job grows after it ran out of memory."""
MIN_ADJUSTMENT = 0.05
"""Share of a reservation by which it must be too large to be reduced."""


def with_reserved_memory(
    gpus: GpuRequest, progress: Progress | None, profile: JobProfile
) -> GpuRequest:
    """Return the request of a job that may share GPUs, with the memory to reserve.

    A job of which no memory use is known gets whole GPUs.
    """
    memory = gpus.memory
    if profile.peak is not None:
        memory = with_margin(profile.peak)
    if progress is not None and progress.reserve is not None:
        memory = progress.reserve if memory is None else max(progress.reserve, memory)
    alone = progress is not None and progress.exclusive_only
    return replace(gpus, memory=memory, shareable=memory is not None and not alone)


def is_preemptible(job: Job, spec: Spec) -> bool:
    """Whether a running job can be stopped so that it resumes later."""
    if spec.non_preemptible:
        return False
    accepts_stop = job.progress is not None and job.progress.accepts_stop
    return accepts_stop or spec.requeueable or spec.early_signal is not None


def adjusted_placement(job: Job, spec: Spec) -> Placement | None:
    """Return the placement with as much memory as was measured; None if that changes nothing.

    More is reserved at once, less only after a whole epoch.
    """
    gpus, progress, placement = spec.request.gpus, job.progress, job.placement
    if gpus is None or not gpus.shareable or progress is None or placement is None:
        return None
    if progress.peak is None or progress.exclusive_only or spec.request.exclusive:
        return None
    if any(take.is_pooled for take in placement.allocations):
        return None
    needed, held = with_margin(progress.peak), reserved_memory(placement)
    has_full_epoch = progress.epochs > progress.epochs_at_start
    whole = any(take.type == GPU and take.amount == THOUSAND for take in placement.allocations)
    if whole and not has_full_epoch:
        return None
    is_too_large = has_full_epoch and needed < held * (1 - MIN_ADJUSTMENT)
    if not whole and needed <= held and not is_too_large:
        return None
    return _with_memory(placement, needed)


def _with_memory(placement: Placement, memory: int) -> Placement:
    def resized(part: Placement) -> Placement:
        allocations = tuple(
            DeviceAllocation(GPU, held.device, SHARED_SLOT, memory) if held.type == GPU else held
            for held in part.allocations
        )
        return replace(part, allocations=allocations, other_parts=())

    return replace(resized(placement), other_parts=tuple(map(resized, placement.other_parts)))


def reserved_memory(placement: Placement) -> int:
    """Return the MiB reserved on each GPU of a placement."""
    return max((take.memory for take in placement.allocations if take.type == GPU), default=0)


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
    progress = job.progress or Progress()
    progress = replace(progress, oom_count=progress.oom_count + 1)
    devices = [
        cluster.nodes[part.node].by_name[GPU, name]
        for part in placement.parts
        for name in part.names(GPU)
    ]
    if any(device.removed for device in devices):  # how much memory they had is no longer known
        words = "CUDA out of memory; requeued with a GPU of its own"
        return (
            None
            if progress.exclusive_only
            else OomRecovery(replace(progress, exclusive_only=True), words)
        )
    total = min((device.facts.memory or 0 for device in devices), default=0)
    whole = not any(device.sharers for device in devices)
    held, peak = total if whole else reserved_memory(placement), progress.peak or 0
    more = min(max(int(held * OOM_GROWTH), with_margin(peak)), total)
    if (
        progress.shared_gpu
        and not progress.exclusive_only
        and not (progress.exceeded_reservation or peak > held)
    ):
        return _after_shared_oom(progress, sharers, more)
    if progress.shared_gpu and not progress.exclusive_only and progress.oom_count > 1:
        words = "CUDA out of memory again; requeued with a GPU of its own"
        return OomRecovery(replace(progress, exclusive_only=True), words, learned=more)
    if more > held:
        words = f"CUDA out of memory; requeued with {more} MiB"
        return OomRecovery(replace(progress, reserve=more), words, learned=more)
    larger = [
        device.facts.memory
        for node in cluster.nodes.values()
        for device in node.types.get(GPU, ())
        if (device.facts.memory or 0) > total
    ]
    if larger and total:
        words = f"CUDA out of memory; requeued for a GPU with more than {total} MiB"
        return OomRecovery(replace(progress, reserve=total + 1), words, learned=total + 1)
    return None


def _after_shared_oom(progress: Progress, sharers: list[Job], more: int) -> OomRecovery:
    """Return exclusive GPUs for a job that was not measured beyond its own reservation.

    If the other jobs kept to their reservations too, the job must have needed more than it had.
    """
    words = "CUDA out of memory on a shared GPU; requeued with a GPU of its own"
    exceeded = any(job.progress and job.progress.exceeded_reservation for job in sharers)
    if exceeded or not sharers:
        return OomRecovery(replace(progress, exclusive_only=True), words)
    return OomRecovery(replace(progress, exclusive_only=True, reserve=more), words, learned=more)
