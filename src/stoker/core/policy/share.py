"""GPUs shared by memory: what each job sets aside, and what becomes of one that ran out."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.cluster import SLIVER, Cluster, Placement, Take
from stoker.core.estimate import Family, with_margin
from stoker.core.job import Job, Progress, Spec
from stoker.core.request import GPU, GpuAsk
from stoker.core.units import THOUSAND

MORE = 1.5
"""A job that ran out of memory gets so much more the next time."""
WORTH_IT = 0.05
"""Reservations are corrected when they are off by more than this share."""


def reserved(ask: GpuAsk, progress: Progress | None, family: Family) -> GpuAsk:
    """What a job that may share its GPUs asks for now, after all that was learned.

    Nobody knows who could be beside a job of which nothing is known: it gets whole GPUs.
    """
    memory = ask.memory
    if family.peak is not None:
        memory = with_margin(family.peak)
    if progress is not None and progress.reserve is not None:
        memory = progress.reserve if memory is None else max(progress.reserve, memory)
    alone = progress is not None and progress.alone
    return replace(ask, memory=memory, beside=memory is not None and not alone)


def can_stop(job: Job, spec: Spec) -> bool:
    """Whether a running job can be made to stop in such a way that it goes on later."""
    if spec.steady:
        return False
    listening = job.progress is not None and job.progress.listening
    return listening or spec.restartable or spec.warning is not None


def corrected(job: Job, spec: Spec) -> Placement | None:
    """The same devices with as much memory as was measured; None when that changes nothing.

    More is set aside at once, less only when a whole epoch has shown that it is enough.
    """
    ask, progress, placement = spec.request.gpus, job.progress, job.placement
    if ask is None or not ask.beside or progress is None or placement is None:
        return None
    if progress.peak is None or progress.alone or spec.request.exclusive:
        return None
    if any(take.of_pool for take in placement.takes):
        return None
    needed, held = with_margin(progress.peak), memory_of(placement)
    settled = progress.epochs > progress.since
    whole = any(take.type == GPU and take.amount == THOUSAND for take in placement.takes)
    if whole and not settled:
        return None
    if not whole and not needed > held and not (settled and needed < held * (1 - WORTH_IT)):
        return None
    return _with_memory(placement, needed)


def _with_memory(placement: Placement, memory: int) -> Placement:
    def anew(part: Placement) -> Placement:
        takes = tuple(
            Take(GPU, take.device, SLIVER, memory) if take.type == GPU else take
            for take in part.takes
        )
        return replace(part, takes=takes, more=())

    return replace(anew(placement), more=tuple(map(anew, placement.more)))


def memory_of(placement: Placement) -> int:
    """MiB set aside on each of its GPUs."""
    return max((take.memory for take in placement.takes if take.type == GPU), default=0)


class Shortage(Struct, frozen=True):
    """What follows when an attempt ran out of a GPU's memory: how it is tried again."""

    progress: Progress
    words: str
    learned: int | None = None
    """What its whole family is now known to need."""


def after_shortage(job: Job, spec: Spec, cluster: Cluster, beside: list[Job]) -> Shortage | None:
    """More memory the next time, or no neighbours; None: it had all there is.

    `beside` are those who share its GPUs now.
    """
    ask, placement = spec.request.gpus, job.placement
    if ask is None or not ask.beside or placement is None:
        return None
    progress = job.progress or Progress()
    progress = replace(progress, shortages=progress.shortages + 1)
    devices = [
        cluster.nodes[part.node].by_name[GPU, name]
        for part in placement.parts
        for name in part.names(GPU)
    ]
    if any(device.gone for device in devices):  # nobody knows any more how much they had
        words = "CUDA out of memory; requeued with a GPU of its own"
        return None if progress.alone else Shortage(replace(progress, alone=True), words)
    total = min((device.facts.memory or 0 for device in devices), default=0)
    whole = not any(device.slivers for device in devices)
    held, peak = total if whole else memory_of(placement), progress.peak or 0
    more = min(max(int(held * MORE), with_margin(peak)), total)
    if progress.shared and not progress.alone and not (progress.grew or peak > held):
        return _beside_others(progress, beside, more)
    if progress.shared and not progress.alone and progress.shortages > 1:
        words = "CUDA out of memory again; requeued with a GPU of its own"
        return Shortage(replace(progress, alone=True), words, learned=more)
    if more > held:
        words = f"CUDA out of memory; requeued with {more} MiB"
        return Shortage(replace(progress, reserve=more), words, learned=more)
    larger = [
        device.facts.memory
        for node in cluster.nodes.values()
        for device in node.types.get(GPU, ())
        if (device.facts.memory or 0) > total
    ]
    if larger and total:
        words = f"CUDA out of memory; requeued for a GPU with more than {total} MiB"
        return Shortage(replace(progress, reserve=total + 1), words, learned=total + 1)
    return None


def _beside_others(progress: Progress, beside: list[Job], more: int) -> Shortage:
    """It was not seen to use more than its own. It is never to suffer from others again.

    If they have kept to theirs, it must have wanted more than it had, and so will its like.
    """
    words = "CUDA out of memory on a shared GPU; requeued with a GPU of its own"
    over = any(job.progress is not None and job.progress.grew for job in beside)
    if over or not beside:
        return Shortage(replace(progress, alone=True), words)
    return Shortage(replace(progress, alone=True, reserve=more), words, learned=more)
