"""Whether there is any way at all to run a job on given machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil

from msgspec import Struct

from stoker.core.cluster import DeviceFacts, NodeFacts
from stoker.core.request import CPU, GPU, MEMORY
from stoker.core.units import THOUSAND
from stoker.simulate.workload import Load

Wanted = tuple[float, tuple[str, ...], float, int, int | None]
"""What counts of a job: GPUs, their models, cores, memory, memory of each GPU."""


class Kind(Struct):
    """Machines that are alike."""

    cards: Counter[tuple[str, int]]
    """By model and memory."""
    cores: int
    """Thousandths."""
    ram: int
    count: int = 0


class Room:
    """Machines, as far as it matters whether a job could ever run."""

    def __init__(self, nodes: Sequence[NodeFacts]) -> None:
        kinds: dict[object, Kind] = {}
        same: dict[int, Kind] = {}  # machines that were typed share what is said of them
        for node in nodes:
            kind = same.get(id(node.types))
            if kind is None:
                key = tuple(sorted(node.types.items()))
                kind = same[id(node.types)] = kinds.setdefault(key, _kind(node))
            kind.count += 1
        self.kinds = list(kinds.values())
        self.per_node = max((kind.cards.total() for kind in self.kinds), default=0)
        self._known: dict[Wanted, bool] = {}

    def has(self, job: Load) -> bool:
        """Whether it could run if nothing else did."""
        wanted = (job.gpus, job.models, job.cpus, job.ram, job.memory)
        found = self._known.get(wanted)
        if found is None:
            found = self._known[wanted] = self._has(job)
        return found

    def _has(self, job: Load) -> bool:
        """As the replay asks: more than a machine has is asked of several, of each the same."""
        if not job.gpus and not job.cpus:
            return False
        machines = max(ceil(job.gpus / self.per_node), 1) if self.per_node else 1
        gpus = ceil(job.gpus / machines)
        able = sum(
            kind.count
            for kind in self.kinds
            if _cards(kind, job) >= gpus
            and kind.cores >= round(job.cpus * THOUSAND / machines)
            and kind.ram >= ceil(job.ram / machines)
        )
        return able >= machines


def _kind(node: NodeFacts) -> Kind:
    cards = Counter(
        ((facts.model or "").lower(), facts.memory or 0) for facts in node.types.get(GPU, ())
    )
    return Kind(cards, _largest(node.types.get(CPU, ())), _largest(node.types.get(MEMORY, ())))


def _largest(devices: Sequence[DeviceFacts]) -> int:
    """The most that one job can have: of units any number, otherwise of one device."""
    capacities = [facts.capacity for facts in devices]
    units = all(capacity == THOUSAND for capacity in capacities)
    return sum(capacities) if units else max(capacities)


def _cards(kind: Kind, job: Load) -> int:
    """How many GPUs would do; a part of a model's name will, as for any job."""
    return sum(
        count
        for (model, memory), count in kind.cards.items()
        if memory >= (job.memory or 0)
        and (not job.models or any(word.lower() in model for word in job.models))
    )


def smallest(jobs: Sequence[Load]) -> str:
    """What the smallest of these jobs asks for, in words."""
    job = min(jobs, key=lambda each: (each.gpus, each.cpus, each.ram, each.memory or 0))
    parts = []
    if job.gpus or not job.cpus:
        models = f" of model {' or '.join(job.models)}" if job.models else ""
        parts.append(f"{job.gpus:g} GPU{'s' * (job.gpus != 1)}{models}")
        if job.memory:
            parts[0] += f" with {job.memory:,} MiB"
    if job.cpus:
        parts.append(f"{job.cpus:g} core{'s' * (job.cpus != 1)}")
    if job.ram:
        parts.append(f"{job.ram:,} MiB of memory")
    return ", ".join(parts)
