"""The ledger: nodes, devices and what is allocated on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stoker.core.cluster.change_log import ChangeLog
from stoker.core.cluster.fragmentation import DemandHistogram, FreeResources
from stoker.core.cluster.free_index import FreeCapacityIndex, free_resources
from stoker.core.cluster.node import Device, Node
from stoker.core.model.advance import AdvanceReservation
from stoker.core.model.resources import GPU, DeviceFacts, NodeFacts, Placement, PlacementMode

REMOVED = "it was removed"


class Cluster:
    """All nodes, and the one ledger of allocations on them."""

    def __init__(self) -> None:
        self.base = self
        """The ledger of what is allocated, beneath all overlays."""
        self.nodes: dict[str, Node] = {}
        self.pilots: dict[str, tuple[Node, int]] = {}
        """By delegated node: the nodes that are added for jobs that they can run, idle, and their
        time limit in seconds."""
        self._joined = 0
        self._free_index = FreeCapacityIndex()
        self._index_cursor = 0
        self.node_ends: dict[str, float] = {}
        """When nodes end by themselves (wall clock); most nodes do not."""
        self.advance_reservations: tuple[AdvanceReservation, ...] = ()
        """What is reserved for users, groups or queues, now or later."""
        self.gpu_models: dict[str, DeviceFacts] = {}
        """One GPU of each model, by model key, in the order of nodes."""
        self.demand_histogram = DemandHistogram()
        """Requests of all unfinished jobs."""
        self.changes = ChangeLog()
        self.idle_cluster: Cluster | None = None
        """All nodes without allocations, once requested."""

    def modified_nodes(self) -> dict[str, Node]:
        """Return the nodes that differ from the base ledger."""
        return {}

    def free_index(self) -> FreeCapacityIndex:
        """Return the index of the base ledger, up to date; it ignores `modified_nodes`."""
        for name in self.changes.since(self._index_cursor):
            if (node := self.nodes.get(name)) is not None:
                self._free_index.update(name, free_resources(node), node.join_index)
            else:
                self._free_index.remove(name)
        self._index_cursor = self.changes.end
        return self._free_index

    def modified_free(self) -> Iterator[tuple[Node, FreeResources]]:
        """Yield the nodes that differ from the base ledger and what is free there, if indexable."""
        for node in self.modified_nodes().values():
            if (free := self.free_of(node)) is not None:
                yield node, free

    def free_of(self, node: Node) -> FreeResources | None:
        """Return what is free on a node of this ledger; None if the index cannot describe it."""
        return free_resources(node)

    def is_free(self, placement: Placement) -> bool:
        """Whether all devices of a placement are free in this ledger."""
        for part in placement.parts:
            node = self.node(part.node)
            if node is None or node.unavailable_reason is not None:
                return False
            for allocation in part.allocations:
                device = node.by_name.get((allocation.type, allocation.device))
                if device is None or device.removed or device.drained is not None:
                    return False
                if device.available < allocation.amount or (
                    allocation.memory and device.memory_free < allocation.memory
                ):
                    return False
        return True

    def node(self, name: str) -> Node | None:
        """Return a node, which the caller must not change."""
        return self.nodes.get(name)

    def all_nodes(self) -> Iterator[Node]:
        """Yield every node of this ledger, which the caller must not change."""
        return (node for name in self.base.nodes if (node := self.node(name)) is not None)

    def writable(self, name: str) -> Node:
        """Return a node of this ledger that the caller may change."""
        self.mark_changed(name)
        return self.nodes[name]

    def mark_changed(self, name: str) -> None:
        """Record that the allocations or marks of a node changed."""
        self.changes.append(name)

    def add_node(self, facts: NodeFacts, held: Iterable[Placement]) -> None:
        """Add a node, or replace its facts; `held`: allocations of attempts that run there."""
        before = self.nodes.get(facts.name)
        if before is not None and before.removed:
            del self.nodes[facts.name]  # it joins as the last one, as after a restart
            before = None
        node = _idle_node(facts, before.join_index if before is not None else self._joined)
        self._joined += before is None
        self.node_ends.pop(facts.name, None)
        if facts.ends_at is not None:
            self.node_ends[facts.name] = facts.ends_at
        self.pilots.pop(facts.name, None)
        if facts.pilot is not None:
            self.pilots[facts.name] = (_idle_node(facts.pilot), facts.pilot.max_seconds)
        for key, device in node.by_name.items():
            if before is not None and (old := before.by_name.get(key)):
                device.copy_marks(old)
        self.nodes[facts.name] = node
        if before is None:
            self._add_models(node)
        elif _gpu_facts(before) != _gpu_facts(node):
            self._find_models()
        for placement in held:
            self._restore_allocation(node, before, placement)
        self.mark_changed(facts.name)

    def _find_models(self) -> None:
        """Find the GPU models again: some may be gone."""
        self.gpu_models = {}
        for node in self.nodes.values():
            self._add_models(node)

    def _add_models(self, node: Node) -> None:
        for facts in _gpu_facts(node):
            self.gpu_models.setdefault(facts.model_key, facts)

    def remove_node(self, name: str, held: Iterable[Placement] = ()) -> None:
        """Remove a node, at once or when the last attempt ends that holds devices of it."""
        removed = self.nodes.pop(name, None)
        if removed is not None and _gpu_facts(removed):
            self._find_models()
        self.node_ends.pop(name, None)
        self.pilots.pop(name, None)
        held = list(held)
        if held:
            self.add_node(NodeFacts(name, {}), held)
            node = self.nodes[name]
            node.removed, node.unavailable_reason = True, REMOVED
        elif removed is not None:
            self.mark_changed(name)

    @staticmethod
    def _restore_allocation(node: Node, before: Node | None, placement: Placement) -> None:
        for allocation in placement.allocations:
            key = (allocation.type, allocation.device)
            device = node.by_name.get(key)
            if device is None:
                # The node no longer offers the device: it stays, unavailable to other jobs, until
                # the attempts end that hold it.
                old = before.by_name.get(key) if before else None
                facts = old.facts if old else DeviceFacts(key[1], capacity=allocation.amount)
                device = Device(allocation.type, facts)
                device.removed = True
                node.add(device)
            # Unchecked: a device that shrank under its attempts is over-committed until they end.
            device.allocate(allocation)

    def allocate(self, placement: Placement) -> None:
        """Allocate the devices of a placement."""
        for part in placement.parts:
            self.writable(part.node).allocate(part.allocations)

    def release(self, placement: Placement) -> None:
        """Release the devices of a placement."""
        for part in placement.parts:
            node = self.writable(part.node)
            node.release(part.allocations)
            if self.base is self:  # an overlay keeps the devices of the ledger beneath it
                node.drop_removed()
                if node.removed and not node.by_name:
                    del self.nodes[part.node]


def _gpu_facts(node: Node) -> list[DeviceFacts]:
    """Return the GPUs that a node offers."""
    return [device.facts for device in node.types.get(GPU, ()) if not device.removed]


def _idle_node(facts: NodeFacts, join_index: int = 0) -> Node:
    """Return a node with nothing allocated."""
    node = Node(facts.name, join_index, on_demand=facts.on_demand)
    node.delegated = facts.placement is PlacementMode.DELEGATED
    node.takes_gangs = node.delegated and facts.takes_gangs
    for type, devices in facts.types.items():
        for device in devices:
            node.add(Device(type, device))
    return node
