"""How many jobs a machine takes at once, and which GPU each of them gets. Pure.

One job's needs are taken off what is free, again and again, until something is overdrawn. Cores
and the time of GPUs may be, a little: systems cope well with that. Amounts are thousandths of
cores and of GPUs, and MiB, so that tenths add up.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

THOUSAND = 1000
SPARE_CORES = 2 * THOUSAND
"""So many cores may be promised beyond those that are free."""
FULL_GPU = 1200
"""So far may the promises for one GPU go, with what is going on there already."""
MOST = 1000
"""No machine gets more, however little a job asks for."""

Slots = list[int | None]
"""For each job that runs at once, the index of its GPU, if it has one."""


class Need:
    """What one job asks for."""

    __slots__ = ("cores", "gpu", "gpu_memory", "gpu_share", "memory", "reserve", "reserve_gpu")

    def __init__(
        self,
        *,
        cores: int = 1,
        memory: int = 7000,
        gpu: bool = True,
        gpu_memory: int = 1000,
        gpu_share: int = 750,
        reserve_gpu: bool = True,
        reserve: bool = False,
    ) -> None:
        self.cores, self.memory, self.reserve = cores, memory, reserve
        self.gpu, self.gpu_memory, self.gpu_share = gpu, gpu_memory, gpu_share
        self.reserve_gpu = reserve_gpu


class Gpu:
    """One GPU as it is now."""

    __slots__ = ("held", "index", "memory", "stranger", "used")

    def __init__(
        self,
        index: int,
        memory: int | None,
        used: int = 0,
        held: int = 0,
        stranger: bool = False,
    ) -> None:
        self.index, self.memory, self.used, self.held = index, memory, used, held
        """Free memory (None: the driver does not say), how busy it is, and what jobs of ours
        that are there already were promised of it."""
        self.stranger = stranger
        """Whether processes of others are on it."""


class Free:
    """What a machine has left."""

    __slots__ = ("cores", "gpus", "in_use", "memory")

    def __init__(
        self, cores: int, memory: int, gpus: Sequence[Gpu] = (), in_use: bool = False
    ) -> None:
        self.cores, self.memory, self.gpus = cores, memory, list(gpus)
        self.in_use = in_use
        """Whether a job of ours is there already."""


def slots(free: Free, need: Need) -> Slots:
    """The slots of a machine."""
    if need.reserve and free.in_use:
        return []
    cores, memory = free.cores, free.memory
    left = {gpu.index: _room(gpu, need) for gpu in free.gpus}
    found: Slots = []
    while len(found) < (1 if need.reserve else MOST):
        cores -= need.cores * THOUSAND
        memory -= need.memory
        if cores < -SPARE_CORES or memory < 0:
            break
        chosen = _choose(left, need) if need.gpu else None
        if need.gpu and chosen is None:
            break
        found.append(chosen)
    return found


Room = tuple[int | None, int] | None
"""What is left of a GPU: memory, and its time; None when it is reserved."""


def _room(gpu: Gpu, need: Need) -> Room:
    """What a job may have of a GPU. One that another job of ours has is not free as a whole."""
    if gpu.held >= THOUSAND or (gpu.held and need.reserve_gpu):
        return None
    # Shares are entered in the books as parts of the tolerated overload.
    return gpu.memory, FULL_GPU - max(gpu.used, gpu.held * FULL_GPU // THOUSAND)


def _choose(left: dict[int, Room], need: Need) -> int | None:
    """The least busy GPU that is not reserved and has the memory; its room shrinks."""
    best: int | None = None
    most = -1
    for index, room in left.items():
        if room is None or (room[0] is not None and room[0] < need.gpu_memory):
            continue
        if room[1] > most:
            best, most = index, room[1]
    if best is None or most < need.gpu_share:
        return None
    memory, _ = left[best] or (None, 0)
    after = None if memory is None else memory - need.gpu_memory
    left[best] = None if need.reserve_gpu else (after, most - need.gpu_share)
    return best


def why_none(free: Free, need: Need) -> str:
    """Why a machine takes not even one job, in a few words."""
    if need.reserve and free.in_use:
        return "one of your jobs runs on it, so it cannot be reserved"
    if free.memory < need.memory:
        return f"{max(free.memory, 0)} MB of memory are free, a job needs {need.memory}"
    if free.cores + SPARE_CORES < need.cores * THOUSAND:
        cores = max(free.cores, 0) / THOUSAND
        return f"{cores:.1f} cores are free (2 more are tolerated), a job needs {need.cores}"
    if not free.gpus:
        return "it has no GPU (with --no-gpu-required, jobs need none)"
    rooms = [room for gpu in free.gpus if (room := _room(gpu, need)) is not None]
    if not rooms:
        return "your jobs use its GPUs"
    known = [room[0] for room in rooms]
    if all(memory is not None and memory < need.gpu_memory for memory in known):
        largest = max(memory for memory in known if memory is not None)
        return f"its GPUs have at most {largest} MB free, a job needs {need.gpu_memory}"
    share = need.gpu_share / THOUSAND
    return f"its GPUs are too busy for {share:g} of one (--gpu-utilization)"
