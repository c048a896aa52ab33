"""Nodes on which preemption can help, by their thresholds: the rank a preemptor must be below."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from math import inf

from stoker.core.model.resources import ResourceRequest
from stoker.core.placement.request_shape import gpu_bucket_of, gpus_needed
from stoker.core.policies.ranking import Threshold
from stoker.core.running.thresholds import NodeThreshold
from stoker.core.state.reranking import update_victims_on
from stoker.core.state.state import State

UNREACHABLE: Threshold = (-inf, -inf)
"""Threshold where no preemption suffices."""


def best_threshold(
    state: State, gpus: int, at: float, nodes: Sequence[str] | None = None
) -> Threshold:
    """Return the threshold of the best node, or of given nodes, for this number of GPUs."""
    if nodes is None:
        best = next(_descending(state, gpus, at), None)
        return best[0][:2] if best is not None else UNREACHABLE
    for name in nodes:
        update_victims_on(state, name, at)
    last = [state.thresholds.last_victim(name, gpus) for name in nodes]
    return max([victim[:2] for victim in last if victim is not None], default=UNREACHABLE)


def candidate_nodes(
    state: State, request: ResourceRequest, above: Threshold, at: float
) -> Iterator[str]:
    """Yield nodes with a threshold above this, the best first.

    The last victim for all amounts ranks no lower than the one for GPUs alone, by which nodes are
    sorted: a node is yielded once no further one can be better.
    """
    best: list[NodeThreshold] = []
    for bound, name in _descending(state, gpu_bucket_of(request), at):
        if bound[:2] <= above:
            break
        while best and best[-1] > (bound, name):
            yield best.pop()[1]
        victim = state.thresholds.last_victim(
            name, gpus_needed(request), request.cpus, request.memory
        )
        if victim is not None and victim[:2] > above:
            insort(best, (victim, name))
    for _, name in reversed(best):
        yield name


def _descending(state: State, gpus: int, at: float) -> Iterator[NodeThreshold]:
    """Yield nodes by their last victim for this number of GPUs, with current ranks."""
    for row in state.thresholds.descending(gpus):
        # A node with a new rank comes again, unless it is another victim that has moved.
        update_victims_on(state, row[1], at)
        if state.thresholds.last_victim(row[1], gpus) == row[0]:
            yield row
