"""Preemption thresholds per node.

To free a number of GPUs on a node, its victims are evicted in victim order; the key of the last
one needed is the node's threshold for that number: only a job ranked before it can preempt there.
Nodes are sorted by threshold per GPU count, so one comparison tells whether any preemption helps.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from math import inf

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.fragmentation import max_request_amount
from stoker.core.model.resources import CPU, GPU, MEMORY
from stoker.core.placement.capacity import available_on, total_available
from stoker.core.placement.request_shape import GPU_BUCKET
from stoker.core.policies.ranking import Threshold
from stoker.core.running.victims import VictimIndex, VictimKey
from stoker.core.structures.sorted_list import remove_sorted

UNREACHABLE: Threshold = (-inf, -inf)
"""Threshold of a node where no preemption suffices."""
ALREADY_FREE: Threshold = (inf, inf)
"""Threshold of a node with enough free capacity."""
NodeThreshold = tuple[VictimKey, str]
"""Key of the last victim needed, and the node."""
EvictionSteps = list[tuple[int, int, int, VictimKey]]
"""Free GPUs, cores and memory after evicting this victim and all before it in victim order."""


class PreemptionThresholds:
    """Thresholds of the nodes of a ledger, per GPU count.

    Derived from: the ledger, VictimIndex.
    Invalidated by: the change log of the ledger and reordered victims, applied by `refresh`.
    Cost: O(victims on a node) per changed node and GPU count.
    """

    def __init__(
        self,
        ledger: Cluster,
        victims: VictimIndex,
        may_preempt: Callable[[int], bool] | None = None,
    ) -> None:
        """`may_preempt` tells which of the victims can be preempted; without it, all."""
        self.ledger, self.victims, self.can_preempt = ledger, victims, may_preempt
        self._cursor = 0
        self._steps: dict[str, EvictionSteps] = {}
        self._tables: dict[int, _NodeOrder] = {}
        """Orders of nodes by GPU count."""
        self.changed: dict[str, None] = {}
        """Nodes that changed since the last complete preemption stage."""

    def refresh(self, reordered: Iterable[str] = ()) -> None:
        """Recompute changed nodes and those with reordered victims."""
        stale = dict.fromkeys([*self.ledger.changes.since(self._cursor), *reordered])
        if not stale:
            return
        self._cursor = self.ledger.changes.end
        self.changed.update(stale)
        for name in stale:
            steps = self._eviction_steps(name)
            for gpus, order in self._tables.items():
                order.set(name, last_victim(steps, gpus))
            if steps:
                self._steps[name] = steps
            else:
                self._steps.pop(name, None)

    def descending(self, gpus: int) -> Iterator[NodeThreshold]:
        """Yield nodes, the highest threshold first. Nothing may change meanwhile."""
        gpus -= gpus % GPU_BUCKET
        order = self._tables.get(gpus)
        if order is None:
            order = self._tables[gpus] = _NodeOrder()
            for name, steps in self._steps.items():
                order.set(name, last_victim(steps, gpus))
        return reversed(order.rows)

    def threshold_on(self, name: str, gpus: int, cores: int = 0, memory: int = 0) -> Threshold:
        """Return the threshold of one node for GPUs, cores and memory."""
        victim = self.last_victim(name, gpus, cores, memory)
        return victim[:2] if victim is not None else UNREACHABLE

    def last_victim(
        self, name: str, gpus: int, cores: int = 0, memory: int = 0
    ) -> VictimKey | None:
        """Return the last victim on a node that these amounts need; None: all are not enough."""
        return last_victim(self._steps.get(name, []), gpus, cores, memory)

    def _eviction_steps(self, name: str) -> EvictionSteps:
        freed = self.victims.freed_on.get(name)
        node = self.ledger.node(name) if freed else None
        if freed is None or node is None or node.unavailable_reason is not None:
            return []
        left = available_on(node, GPU)
        cores, memory = total_available(node, CPU), total_available(node, MEMORY)
        steps: EvictionSteps = []
        for victim in self.victims.victims_on(name):
            if self.can_preempt is not None and not self.can_preempt(victim[3]):
                continue
            freed_gpus, freed_cores, freed_memory = freed[victim[3]]
            cores += freed_cores
            memory += freed_memory
            for device, amount in freed_gpus:
                if device in left:
                    capacity = node.by_name[GPU, device].facts.capacity
                    left[device] = min(left[device] + amount, capacity)
            steps.append((max_request_amount(left.values()), cores, memory, victim))
        return steps


def last_victim(
    steps: EvictionSteps, gpus: int, cores: int = 0, memory: int = 0
) -> VictimKey | None:
    """Return the last victim needed for these amounts."""
    for free_gpus, free_cores, free_memory, victim in steps:
        if free_gpus >= gpus and free_cores >= cores and free_memory >= memory:
            return victim
    return None


class _NodeOrder:
    """Nodes in the order of their thresholds."""

    __slots__ = ("_key_of", "rows")

    def __init__(self) -> None:
        self.rows: list[NodeThreshold] = []
        self._key_of: dict[str, VictimKey] = {}

    def set(self, name: str, victim: VictimKey | None) -> None:
        before = self._key_of.get(name)
        if before == victim:
            return
        if before is not None:
            remove_sorted(self.rows, (before, name))
            del self._key_of[name]
        if victim is not None:
            insort(self.rows, (victim, name))
            self._key_of[name] = victim
