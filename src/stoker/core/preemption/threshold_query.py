"""Where preemption can help: thresholds of the nodes, of the ledger and of the future capacity."""

from __future__ import annotations

from bisect import insort
from collections.abc import Container, Iterable, Iterator
from heapq import merge

from stoker.core.cluster.fragmentation import max_request_amount
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.placement.capacity import available_on
from stoker.core.placement.request_shape import GPU_BUCKET, gpu_bucket_of, gpus_needed
from stoker.core.policies.ranking import Threshold
from stoker.core.preemption.nominations import Nominations
from stoker.core.running.preemption_cost import (
    ALREADY_FREE,
    UNREACHABLE,
    NodeThreshold,
)
from stoker.core.running.victims import VictimKey
from stoker.core.state.state import State


class ThresholdQuery:
    """Thresholds by number of GPUs: the rank that a preemptor must be below.

    Nodes that differ in the future capacity count as they are there, others as they are now.

    Derived from: the thresholds of the ledger and of the future capacity.
    Invalidated by: changed nodes and re-ranked victims, noticed by the next query.
    """

    def __init__(self, state: State, nominations: Nominations) -> None:
        self.state, self.nominations = state, nominations

    def threshold(self, need: int) -> Threshold:
        """Return the threshold of the best node for this number of GPUs."""
        self._refresh()
        best = next(self._descending(need, self.nominations.future.nodes), None)
        return best[0][:2] if best is not None else UNREACHABLE

    def changed_threshold(self, need: int) -> Threshold:
        """Return the threshold of the best node that has changed since the last check."""
        self._refresh()
        changed = self.state.thresholds.changed
        if need % GPU_BUCKET:
            return self.threshold_on(changed, need)
        rows = (
            row[0]
            for row in self._descending(need, self.nominations.future.nodes)
            if row[1] in changed
        )
        best = next(rows, None)
        return best[:2] if best is not None else UNREACHABLE

    def threshold_on(self, names: Iterable[str], need: int) -> Threshold:
        """Return the threshold of the best of these nodes."""
        self._refresh()
        gpus = need - need % GPU_BUCKET
        of_node = self._node_threshold if gpus == need else self._gang_threshold
        return max([of_node(name, gpus) for name in names], default=UNREACHABLE)

    def candidate_nodes(
        self, request: ResourceRequest, above: Threshold, all_nodes: bool
    ) -> Iterator[str]:
        """Yield nodes with a threshold above this, the best first; all of them, or changed ones.

        The last victim for all amounts ranks no lower than the one for GPUs alone, by which
        nodes are sorted: a node is yielded once no further one can be better.
        """
        self._refresh()
        changed, modified = self.state.thresholds.changed, set(self.nominations.future.nodes)
        best: list[NodeThreshold] = []
        for bound, name in self._descending(gpu_bucket_of(request), modified):
            if bound[:2] <= above:
                break
            while best and best[-1] > (bound, name):
                yield best.pop()[1]
            if all_nodes or name in changed:
                victim = self._last_victim(name, request, modified)
                if victim is not None and victim[:2] > above:
                    insort(best, (victim, name))
        for _, name in reversed(best):
            yield name

    def _descending(self, need: int, modified: Container[str]) -> Iterator[NodeThreshold]:
        """Yield nodes and their last victim for this number of GPUs, the first victim first.

        `modified`: nodes whose thresholds are those of the future capacity.
        """
        future = self.nominations.future
        if not future.nodes:
            return self.state.thresholds.descending(need)
        rows = self.state.thresholds.descending(need)
        unmodified = (row for row in rows if row[1] not in modified)
        return merge(unmodified, future.thresholds.descending(need), reverse=True)

    def _gang_threshold(self, name: str, gpus: int) -> Threshold:
        """Return the threshold of a node for a part of a gang, which may be free already."""
        node = self.nominations.future.node(name)
        if node is not None and max_request_amount(available_on(node, GPU).values()) >= gpus:
            return ALREADY_FREE
        return self._node_threshold(name, gpus)

    def _node_threshold(self, name: str, gpus: int) -> Threshold:
        future = self.nominations.future
        thresholds = future.thresholds if name in future.nodes else self.state.thresholds
        return thresholds.threshold_on(name, gpus)

    def _last_victim(
        self, name: str, request: ResourceRequest, modified: Container[str]
    ) -> VictimKey | None:
        """Return the last victim on a node that a request needs."""
        gpus, cores, memory = gpus_needed(request), request.cpus, request.memory
        future = self.nominations.future
        thresholds = future.thresholds if name in modified else self.state.thresholds
        return thresholds.last_victim(name, gpus, cores, memory)

    def _refresh(self) -> None:
        future, reordered = self.nominations.future, self.state.victims.reordered_nodes
        future.thresholds.refresh([name for name in reordered if name in future.nodes])
        self.state.thresholds.refresh(reordered)
        reordered.clear()
