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


def after_shortage(job: Job, spec: Spec, cluster: Cluster) -> Shortage | None:
    """More memory the next time, or no neighbours; None: it had all there is."""
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
        words = "CUDA out of memory; it goes on alone"
        return None if progress.alone else Shortage(replace(progress, alone=True), words)
    total = min((device.facts.memory or 0 for device in devices), default=0)
    shared = any(device.slivers > 1 for device in devices)
    whole = not any(device.slivers for device in devices)
    held, peak = total if whole else memory_of(placement), progress.peak or 0
    if shared and peak <= held and not progress.grew:
        # It kept to what it had, so that another took what was not its own.
        words = "CUDA out of memory beside others; it goes on alone"
        return Shortage(replace(progress, alone=True), words)
    more = min(max(int(held * MORE), with_margin(peak)), total)
    if 0 < peak <= held < total and not progress.grew and not progress.alone:
        # So did this one, but the other was the first to fail, and is there no longer.
        words = "CUDA out of memory, though it kept to what it had; it goes on alone"
        return Shortage(replace(progress, reserve=more, alone=True), words)
    if progress.shortages > 1 and not progress.alone and shared:
        words = "CUDA out of memory again; it goes on alone"
        return Shortage(replace(progress, alone=True), words, learned=more)
    if more > held and (shared or held < total):
        words = f"CUDA out of memory; it goes on with {more} MiB"
        return Shortage(replace(progress, reserve=more), words, learned=more)
    larger = [
        device.facts.memory
        for node in cluster.nodes.values()
        for device in node.types.get(GPU, ())
        if (device.facts.memory or 0) > total
    ]
    if larger and total:
        words = f"CUDA out of memory; it goes on where there is more than {total} MiB"
        return Shortage(replace(progress, reserve=total + 1), words, learned=total + 1)
    return None
