"""Preemption thresholds per node.

To free a number of GPUs on a node, its victims are evicted in victim order; the key of the last
one needed is the node's threshold for that number: only a job ranked before it can preempt there.
Nodes are sorted by threshold per GPU count, so one comparison tells whether any preemption helps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from math import inf

from stoker.core.cluster.change_log import ChangeLog
from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.fragmentation import max_request_amount
from stoker.core.model.resources import CPU, GPU, MEMORY
from stoker.core.placement.capacity import available_on, total_available
from stoker.core.policies.ranking import Threshold
from stoker.core.running.victims import VictimIndex, VictimKey
from stoker.core.structures.sorted_list import SortedMap

UNREACHABLE: Threshold = (-inf, -inf)
"""Threshold of a node where no preemption suffices."""
ALREADY_FREE: Threshold = (inf, inf)
"""Threshold of a node with enough free capacity."""
NodeThreshold = tuple[VictimKey, str]
"""Key of the last victim needed, and the node."""
EvictionSteps = list[tuple[int, int, int, VictimKey]]
"""Free GPUs, cores and memory after evicting this victim and all before it in victim order."""


class PreemptionThresholds:
    """Thresholds of the nodes of a ledger, computed when they are asked for.

    Of an overlay, only the nodes that differ from its parent have thresholds here.

    Derived from: the ledger, VictimIndex.
    Invalidated by: the change logs of both, applied by `refresh`.
    Cost: O(victims on a node) per changed node and GPU count that is asked for.
    """

    def __init__(
        self,
        ledger: Cluster,
        victims: VictimIndex,
        can_preempt: Callable[[int], bool] = lambda _: True,
    ) -> None:
        """`can_preempt`: which of the victims can be preempted."""
        self.ledger, self.victims, self.can_preempt = ledger, victims, can_preempt
        self._ledger_cursor, self._victims_cursor = 0, victims.changes.end
        self._steps: dict[str, EvictionSteps] = {}
        self._stale = ChangeLog()
        """Nodes with other thresholds; an order is updated when it is used."""
        self._orders: dict[int, tuple[SortedMap[str, VictimKey], int]] = {}
        """By GPU count: nodes in the order of their thresholds, and how far the changed nodes are
        applied."""

    def last_victim(
        self, name: str, gpus: int, cores: int = 0, memory: int = 0
    ) -> VictimKey | None:
        """Return the last victim on a node that these amounts need; None: all are not enough."""
        steps = self._steps.get(name)
        if steps is None:
            steps = self._steps[name] = self._eviction_steps(name)
        for free_gpus, free_cores, free_memory, victim in steps:
            if free_gpus >= gpus and free_cores >= cores and free_memory >= memory:
                return victim
        return None

    def refresh(self) -> None:
        """Notice changed nodes and those with reordered victims."""
        changed, reordered = self.ledger.changes, self.victims.changes
        stale = {*changed.since(self._ledger_cursor), *reordered.since(self._victims_cursor)}
        self._ledger_cursor, self._victims_cursor = changed.end, reordered.end
        for name in stale:
            self._steps.pop(name, None)
            self._stale.append(name)

    def descending(self, gpus: int) -> Iterator[NodeThreshold]:
        """Yield nodes, the highest threshold first; a node that falls meanwhile comes again."""
        rows = self._rows(gpus)
        index = len(rows)
        while index:
            row = rows[index - 1]
            yield row
            index = bisect_left(self._rows(gpus), row)

    def _rows(self, gpus: int) -> list[NodeThreshold]:
        order, cursor = self._orders.get(gpus) or (SortedMap[str, VictimKey](), 0)
        for name in self._stale.since(cursor):
            if (victim := self.last_victim(name, gpus)) is not None:
                order.set(name, victim)
            else:
                order.remove(name)
        self._orders[gpus] = order, self._stale.end
        return order.rows

    def _eviction_steps(self, name: str) -> EvictionSteps:
        victims, node = self.victims.victims_on(name), self.ledger.nodes.get(name)
        if not victims or node is None or node.unavailable_reason is not None:
            return []
        freed, left = self.victims.freed_on[name], available_on(node, GPU)
        cores, memory = total_available(node, CPU), total_available(node, MEMORY)
        steps: EvictionSteps = []
        for victim in victims:
            if not self.can_preempt(victim[3]):
                continue
            freed_gpus, freed_cores, freed_memory = freed[victim[3]]
            cores += freed_cores
            memory += freed_memory
            for device, amount in freed_gpus:
                if device in left:
                    capacity = node.by_name[GPU, device].facts.capacity
                    left[device] = min(left[device] + amount, capacity)
            free_gpus = max_request_amount(list(left.values()))
            steps.append((free_gpus, cores, memory, victim))
        return steps
