"""Preemption thresholds per node.

To free a number of GPUs on a node, its victims are evicted in victim order; the key of the last
one needed is the node's threshold for that number: only a job ranked before it can preempt there.
Nodes are sorted by threshold per GPU count, so one comparison tells whether any preemption helps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from stoker.core.cluster.change_log import ChangeLog
from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.fragmentation import max_request_amount
from stoker.core.cluster.overlay import Overlay
from stoker.core.model.resources import CPU, GPU, MEMORY
from stoker.core.placement.capacity import available_on, total_available
from stoker.core.running.victims import VictimIndex, VictimKey
from stoker.core.structures import SortedMap

NodeThreshold = tuple[VictimKey, str]
"""Key of the last victim needed, and the node."""
EvictionSteps = list[tuple[int, int, int, VictimKey]]
"""Free GPUs, cores and memory after evicting this victim and all before it in victim order."""


class PreemptionThresholds:
    """Thresholds of the nodes of the future capacity, per GPU count.

    Derived from: the future capacity that it follows, VictimIndex.
    Invalidated by: the change logs of the ledger, of the future capacity and of the victims; by
    `follow`, nodes that differ from the ledger in the last future capacity.
    Cost: O(victims on a node) per changed node and GPU count that is asked for. To compute all
    nodes in every plan would take 10 ms at 1,000 nodes.
    """

    def __init__(
        self, ledger: Cluster, victims: VictimIndex, can_preempt: Callable[[int], bool]
    ) -> None:
        """`can_preempt`: which of the victims can be preempted."""
        self.victims, self.can_preempt = victims, can_preempt
        self.future = Overlay(ledger)
        self._logs = [ledger.changes, victims.changes, self.future.changes]
        self._cursors = [0, 0, 0]
        self._steps: dict[str, EvictionSteps] = {}
        self._stale = ChangeLog()
        """Nodes with other thresholds; an order is updated when it is used."""
        self._orders: dict[int, tuple[SortedMap[str, VictimKey], int]] = {}
        """By GPU count: nodes in the order of their thresholds, and how far the changed nodes are
        applied."""

    def follow(self, future: Overlay) -> None:
        """Follow the future capacity of another plan."""
        self._forget(self.future.nodes)
        self.future, self._logs[2], self._cursors[2] = future, future.changes, 0

    def last_victim(
        self, name: str, gpus: int, cores: int = 0, memory: int = 0
    ) -> VictimKey | None:
        """Return the last victim on a node that these amounts need; None: all are not enough."""
        self._refresh()
        return self._last_victim(name, gpus, cores, memory)

    def _last_victim(
        self, name: str, gpus: int, cores: int = 0, memory: int = 0
    ) -> VictimKey | None:
        steps = self._steps.get(name)
        if steps is None:
            steps = self._steps[name] = self._eviction_steps(name)
        for free_gpus, free_cores, free_memory, victim in steps:
            if free_gpus >= gpus and free_cores >= cores and free_memory >= memory:
                return victim
        return None

    def descending(self, gpus: int) -> Iterator[NodeThreshold]:
        """Yield nodes, the highest threshold first; a node that falls meanwhile comes again."""
        rows = self._rows(gpus)
        index = len(rows)
        while index:
            row = rows[index - 1]
            yield row
            index = bisect_left(self._rows(gpus), row)

    def _rows(self, gpus: int) -> list[NodeThreshold]:
        self._refresh()
        order, cursor = self._orders.get(gpus) or (SortedMap[str, VictimKey](), 0)
        for name in self._stale.since(cursor):
            if (victim := self._last_victim(name, gpus)) is not None:
                order.set(name, victim)
            else:
                order.remove(name)
        self._orders[gpus] = order, self._stale.end
        return order.rows

    def _refresh(self) -> None:
        for index, log in enumerate(self._logs):
            if log.end != self._cursors[index]:
                self._forget(log.since(self._cursors[index]))
                self._cursors[index] = log.end

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._steps.pop(name, None)
            self._stale.append(name)

    def _eviction_steps(self, name: str) -> EvictionSteps:
        victims, node = self.victims.victims_on(name), self.future.node(name)
        if name in self.future.nodes:  # elsewhere no job is stopping
            victims = [key for key in victims if self.can_preempt(key[3])]
        if not victims or node is None or node.unavailable_reason is not None:
            return []
        freed, left = self.victims.freed_on[name], available_on(node, GPU)
        cores, memory = total_available(node, CPU), total_available(node, MEMORY)
        steps: EvictionSteps = []
        for victim in victims:
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
