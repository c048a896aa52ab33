"""Where preemption can help: thresholds of the nodes, of the ledger and of the future capacity."""

from __future__ import annotations

from bisect import insort
from collections.abc import Container, Iterable, Iterator
from heapq import merge

from stoker.core.cluster.fragmentation import max_request_amount
from stoker.core.cluster.node import Node
from stoker.core.model.resources import GPU, ResourceRequest
from stoker.core.placement.capacity import available_on
from stoker.core.placement.request_shape import GPU_BUCKET, gpu_bucket_of, gpus_needed
from stoker.core.policies.ranking import Threshold
from stoker.core.preemption.nominations import Nominations
from stoker.core.running.thresholds import (
    ALREADY_FREE,
    UNREACHABLE,
    NodeThreshold,
    PreemptionThresholds,
)
from stoker.core.state.state import State
from stoker.core.state.victim_ranks import update_victims_on


class ThresholdQuery:
    """Thresholds by number of GPUs: the rank that a preemptor must be below.

    Nodes that differ in the future capacity count as they are there, others as they are now.

    Derived from: the thresholds of the ledger and of the future capacity.
    Invalidated by: changed nodes and re-ranked victims, noticed by the next query.
    """

    def __init__(self, state: State, nominations: Nominations, at: float) -> None:
        self.state, self.nominations, self.at = state, nominations, at

    def threshold(self, need: int) -> Threshold:
        """Return the threshold of the best node for this number of GPUs."""
        self._refresh()
        modified = self.nominations.future.nodes
        best = next(self._descending(need - need % GPU_BUCKET, modified), None)
        return best[0][:2] if best is not None else UNREACHABLE

    def threshold_on(self, names: Iterable[str], need: int) -> Threshold:
        """Return the threshold of the best of these nodes."""
        self._refresh()
        for name in names:
            self._update_ranks(name)
        return max([self._threshold(name, need) for name in names], default=UNREACHABLE)

    def candidate_nodes(self, request: ResourceRequest, above: Threshold) -> Iterator[str]:
        """Yield nodes with a threshold above this, the best first.

        The last victim for all amounts ranks no lower than the one for GPUs alone, by which
        nodes are sorted: a node is yielded once no further one can be better.
        """
        self._refresh()
        gpus = gpu_bucket_of(request)
        modified = set(self.nominations.future.nodes)  # tried victims modify others meanwhile
        best: list[NodeThreshold] = []
        for bound, name in self._descending(gpus - gpus % GPU_BUCKET, modified):
            if bound[:2] <= above:
                break
            while best and best[-1] > (bound, name):
                yield best.pop()[1]
            victim = self._thresholds_of(name, modified).last_victim(
                name, gpus_needed(request), request.cpus, request.memory
            )
            if victim is not None and victim[:2] > above:
                insort(best, (victim, name))
        for _, name in reversed(best):
            yield name

    def _descending(self, gpus: int, modified: Container[str]) -> Iterator[NodeThreshold]:
        """Yield nodes and their last victim for this number of GPUs, the first victim first.

        `modified`: nodes whose thresholds are those of the future capacity.
        """
        rows = self.state.thresholds.descending(gpus)
        unmodified = (row for row in rows if row[1] not in modified)
        future_rows = self.nominations.thresholds.descending(gpus)
        for row in merge(unmodified, future_rows, reverse=True):
            self._update_ranks(row[1])
            if self._thresholds_of(row[1], modified).last_victim(row[1], gpus) == row[0]:
                yield row

    def _threshold(self, name: str, need: int) -> Threshold:
        """Return the threshold of a node; a part of a gang may be free already."""
        gpus, node = need - need % GPU_BUCKET, self.nominations.future.node(name)
        is_gang = need != gpus
        if is_gang and node is not None and _max_free_gpus(node) >= gpus:
            return ALREADY_FREE
        thresholds = self._thresholds_of(name, self.nominations.future.nodes)
        victim = thresholds.last_victim(name, gpus)
        return victim[:2] if victim is not None else UNREACHABLE

    def _thresholds_of(self, name: str, modified: Container[str]) -> PreemptionThresholds:
        return self.nominations.thresholds if name in modified else self.state.thresholds

    def _update_ranks(self, name: str) -> None:
        """Update the ranks of the victims on a node."""
        if update_victims_on(self.state, name, self.at):
            self._refresh()

    def _refresh(self) -> None:
        self.nominations.thresholds.refresh()
        self.state.thresholds.refresh()


def _max_free_gpus(node: Node) -> int:
    return max_request_amount(list(available_on(node, GPU).values()))
