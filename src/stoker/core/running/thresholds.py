"""Preemption thresholds per node.

To free a number of GPUs on a node, its victims are evicted in victim order; the key of the last
one needed is the node's threshold for that number: only a job ranked before it can preempt there.
Nodes are sorted by threshold per GPU count, so one comparison tells whether any preemption helps.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from math import inf

from stoker.core.cluster.change_log import ChangeLog
from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.fragmentation import max_request_amount
from stoker.core.cluster.overlay import Overlay
from stoker.core.model.resources import CPU, GPU, MEMORY
from stoker.core.placement.capacity import available_on, total_available
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


class NodeVictims:
    """What evictions free on each node of a ledger, computed when it is asked for."""

    def __init__(
        self,
        ledger: Cluster,
        victims: VictimIndex,
        can_preempt: Callable[[int], bool] = lambda _: True,
    ) -> None:
        """`can_preempt`: which of the victims can be preempted."""
        self.ledger, self.victims, self.can_preempt = ledger, victims, can_preempt
        self._cursor = 0
        self._steps: dict[str, EvictionSteps] = {}

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

    def _forget_stale(self, reordered: Iterable[str]) -> Iterable[str]:
        """Forget changed nodes and those with reordered victims; return their names."""
        stale = dict.fromkeys([*self.ledger.changes.since(self._cursor), *reordered])
        self._cursor = self.ledger.changes.end
        for name in stale:
            self._steps.pop(name, None)
        return stale

    def _victims_on(self, name: str) -> Iterator[VictimKey]:
        victims, can_preempt = self.victims.victims_on(name), self.can_preempt
        return (victim for victim in victims if can_preempt(victim[3]))

    def _eviction_steps(self, name: str) -> EvictionSteps:
        victims, node = list(self._victims_on(name)), self.ledger.node(name)
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


class PreemptionThresholds(NodeVictims):
    """Thresholds of the nodes of the ledger, per GPU count.

    Derived from: the ledger, VictimIndex.
    Invalidated by: the change log of the ledger and reordered victims, applied by `refresh`.
    Cost: O(victims on a node) per changed node and GPU count that is asked for.
    """

    def __init__(self, ledger: Cluster, victims: VictimIndex) -> None:
        super().__init__(ledger, victims)
        self._stale = ChangeLog()
        """Nodes with other thresholds; a table is updated when it is used."""
        self._tables: dict[int, _NodeOrder] = {}
        """Orders of nodes by GPU count."""

    def refresh(self, reordered: Iterable[str] = ()) -> None:
        """Notice changed nodes and those with reordered victims."""
        for name in self._forget_stale(reordered):
            self._stale.append(name)

    def descending(self, gpus: int) -> Iterator[NodeThreshold]:
        """Yield nodes, the highest threshold first; a node that falls meanwhile comes again."""
        order = self._tables.setdefault(gpus, _NodeOrder())
        self._update(order, gpus)
        index = len(order.rows)
        while index:
            row = order.rows[index - 1]
            yield row
            self._update(order, gpus)
            index = bisect_left(order.rows, row)

    def _update(self, order: _NodeOrder, gpus: int) -> None:
        for name in self._stale.since(order.cursor):
            order.set(name, self.last_victim(name, gpus))
        order.cursor = self._stale.end


class FutureThresholds(NodeVictims):
    """Thresholds of the nodes of an overlay, computed from the node with the first victim on.

    Derived from, invalidated by: as PreemptionThresholds. An overlay lives for one plan, which
    needs a few of its nodes: to compute all took a tenth of the time of an event.
    """

    def __init__(
        self, ledger: Overlay, victims: VictimIndex, can_preempt: Callable[[int], bool]
    ) -> None:
        super().__init__(ledger, victims, can_preempt)
        self._first: dict[str, VictimKey] = {}
        """First victim of each node, which is no lower than any threshold of the node."""

    def refresh(self, reordered: Iterable[str] = ()) -> None:
        """Update changed nodes and those with reordered victims."""
        for name in self._forget_stale(reordered):
            if (victim := next(self._victims_on(name), None)) is not None:
                self._first[name] = victim
            else:
                self._first.pop(name, None)

    def descending(self, gpus: int) -> Iterator[NodeThreshold]:
        """Yield nodes, the highest threshold first; a node that falls meanwhile comes again."""
        rows = sorted((victim, name) for name, victim in self._first.items())
        while rows:
            row = rows.pop()
            if self.last_victim(row[1], gpus) == row[0]:
                yield row
            victim = self.last_victim(row[1], gpus)
            if victim is not None and victim != row[0]:
                insort(rows, (victim, row[1]))


class _NodeOrder:
    """Nodes in the order of their thresholds."""

    __slots__ = ("_key_of", "cursor", "rows")

    def __init__(self) -> None:
        self.rows: list[NodeThreshold] = []
        self.cursor = 0
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
