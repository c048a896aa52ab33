"""The scope of a scan: which classes may fit on which nodes."""

from __future__ import annotations

from collections.abc import Collection

from stoker.core.preemption.nominations import Nominations
from stoker.core.queue.job_class import ShapeGroup
from stoker.core.state.state import State

MAX_UNSCANNED_CLASSES = 64
"""New classes up to which a scan is limited to changes; beyond, a full scan is as fast."""


class ScanScope:
    """The classes and nodes that a scan must visit.

    After a complete scan without reservations, in which nothing more fitted, only classes added
    since then and nodes with more free capacity need to be visited again.

    Derived from: the change log of the cluster and the unscanned classes of the queue.
    Invalidated by: a scan that does not come to its end.
    """

    def __init__(self, state: State, nominations: Nominations) -> None:
        self.state, self.nominations, pending = state, nominations, state.pending
        unscanned = pending.begin_scan()
        self._is_partial = unscanned is not None and len(unscanned) <= MAX_UNSCANNED_CLASSES
        self.unscanned = unscanned if unscanned is not None and self._is_partial else []
        """Classes that may fit on any node."""
        self._nominated_nodes = nominations.nodes

    def nodes_for(self, group: ShapeGroup) -> Collection[str] | None:
        """Return the only nodes where scanned classes of a group may fit; None: any."""
        if not self._is_partial or not self.state.policies.depends_on_capacity_only(group.queue):
            return None
        gpus = group.shape.gpus
        if gpus is not None and gpus.max_amount is not None:
            return None  # how many GPUs an elastic job may have depends on other jobs
        memory = self.state.memory
        changed = self.state.cluster.changes.since(memory.scan_cursor)
        return dict.fromkeys([*memory.rescan_nodes, *changed])

    def commit(self) -> None:
        """Note that nothing more fits, except on nodes that were or are nominated."""
        state = self.state
        state.memory.scan_cursor = state.cluster.changes.end
        state.memory.rescan_nodes = list(self._nominated_nodes | self.nominations.nodes)
        state.pending.complete_scan()
