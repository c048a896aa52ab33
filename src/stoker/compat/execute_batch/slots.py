"""Number of concurrent jobs on a node, and the GPU of each. Pure.

The needs of one job are subtracted from the free resources until one is exceeded. Cores and GPU
time may be overcommitted slightly. Amounts are thousandths of cores and GPUs, and MiB, so that
sums are exact.
"""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

THOUSAND = 1000
OVERCOMMITTED_CORES = 2 * THOUSAND
"""Thousandths of cores that may be allocated beyond the free ones."""
MAX_GPU_USE = 1200
"""Maximum use of a GPU in thousandths, including current use."""
MAX_SLOTS = 1000
"""Maximum slots of a node."""

Slots = list[int | None]
"""GPU index of each slot, None without a GPU."""


class JobNeed(NamedTuple):
    """Resources of one job."""

    cores: int = 1
    memory: int = 7000
    gpu: bool = True
    gpu_memory: int = 1000
    gpu_share: int = 750
    reserve_gpu: bool = True
    reserve: bool = False


class GpuFree(NamedTuple):
    """Free part of one GPU."""

    number: int
    memory: int | None
    """Free memory; None: unknown."""
    used: int = 0
    held: int = 0
    """Thousandths held by stoker's jobs."""
    foreign_process: bool = False
    """Processes of others use it."""


class NodeFree(NamedTuple):
    """Free resources of a node."""

    cores: int
    memory: int
    gpus: Sequence[GpuFree] = ()
    in_use: bool = False
    """A job of stoker runs on it."""


def compute_slots(free: NodeFree, need: JobNeed) -> Slots:
    """Return the slots of a node."""
    if need.reserve and free.in_use:
        return []
    cores, memory = free.cores, free.memory
    left = {gpu.number: _gpu_remainder(gpu, need) for gpu in free.gpus}
    slots: Slots = []
    while len(slots) < (1 if need.reserve else MAX_SLOTS):
        cores -= need.cores * THOUSAND
        memory -= need.memory
        if cores < -OVERCOMMITTED_CORES or memory < 0:
            break
        chosen = _take_gpu(left, need) if need.gpu else None
        if need.gpu and chosen is None:
            break
        slots.append(chosen)
    return slots


GpuRemainder = tuple[int | None, int] | None
"""Free memory and free thousandths of a GPU; None if it is reserved."""


def _gpu_remainder(gpu: GpuFree, need: JobNeed) -> GpuRemainder:
    """Return what is free of a GPU; None if a job holds it."""
    if gpu.held >= THOUSAND or (gpu.held and need.reserve_gpu):
        return None
    # Shares are accounted relative to the tolerated maximum use.
    return gpu.memory, MAX_GPU_USE - max(gpu.used, gpu.held * MAX_GPU_USE // THOUSAND)


def _take_gpu(left: dict[int, GpuRemainder], need: JobNeed) -> int | None:
    """Take the least used GPU with enough memory, None if there is none."""
    best: int | None = None
    most_free = -1
    for index, room in left.items():
        if room is None or (room[0] is not None and room[0] < need.gpu_memory):
            continue
        if room[1] > most_free:
            best, most_free = index, room[1]
    if best is None or most_free < need.gpu_share:
        return None
    memory, _ = left[best] or (None, 0)
    after = None if memory is None else memory - need.gpu_memory
    left[best] = None if need.reserve_gpu else (after, most_free - need.gpu_share)
    return best


def no_slot_reason(free: NodeFree, need: JobNeed) -> str:
    """Return why a node has no slot."""
    if need.reserve and free.in_use:
        return "one of your jobs runs on it, so it cannot be reserved"
    if free.memory < need.memory:
        return f"{max(free.memory, 0)} MB of memory are free, a job needs {need.memory}"
    if free.cores + OVERCOMMITTED_CORES < need.cores * THOUSAND:
        cores = max(free.cores, 0) / THOUSAND
        return f"{cores:.1f} cores are free (2 more are tolerated), a job needs {need.cores}"
    if not free.gpus:
        return "it has no GPU (with --no-gpu-required, jobs need none)"
    rooms = [room for gpu in free.gpus if (room := _gpu_remainder(gpu, need)) is not None]
    if not rooms:
        return "your jobs use its GPUs"
    known = [room[0] for room in rooms]
    if all(memory is not None and memory < need.gpu_memory for memory in known):
        largest = max(memory for memory in known if memory is not None)
        return f"its GPUs have at most {largest} MB free, a job needs {need.gpu_memory}"
    share = need.gpu_share / THOUSAND
    return f"its GPUs are too busy for {share:g} of one (--gpu-utilization)"
