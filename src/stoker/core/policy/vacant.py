"""The ledger as if nothing ran: what anybody could ever have as machines stand now."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.core.cluster import Alike, Cluster, Node, Shadow, Standing


class Vacant(Shadow):
    """All machines, empty. Starts and ends change nothing here, so it is kept between cycles."""

    def refresh(self, names: Iterable[str]) -> None:
        """These machines may stand otherwise: drained, in use by others, gone or new."""
        for name in names:
            true, before = self.true.nodes.get(name), self.nodes.pop(name, None)
            now = _emptied(true) if true is not None else None
            if now is not None and before is not None and now.layout == before.layout:
                now = before  # with all that is known of it
            else:
                self._stale[name] = None
            if now is not None:
                self.nodes[name] = now

    def alike(self) -> Iterable[tuple[Standing, Alike]]:
        """The nodes, those that stand equally together."""
        self._shelve_all()
        return self._alike.items()


def vacant(cluster: Cluster) -> Vacant:
    """As it is now; kept by the true ledger."""
    true = cluster.true
    found = true.vacant
    if not isinstance(found, Vacant):
        found = true.vacant = Vacant(true)
        true.since_vacant.update(dict.fromkeys(true.nodes))
    if true.since_vacant:
        found.refresh(true.since_vacant)
        true.since_vacant.clear()
    return found


def _emptied(true: Node) -> Node:
    node = Node(true.name, true.number)
    node.closed = true.closed
    for device in true.devices():
        if device.gone:
            continue  # it leaves with the last who holds it
        twin = device.copy()
        twin.free, twin.memory_free, twin.slivers = (
            twin.facts.capacity, twin.facts.memory or 0, 0,
        )  # fmt: skip
        node.add(twin)
    return node
