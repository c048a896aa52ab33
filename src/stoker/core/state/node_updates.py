"""Apply the nodes of the cluster record to the ledger: devices, availability, foreign use."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from stoker.core.model.job import Job
from stoker.core.model.resources import CPU, GPU, MEMORY, NodeFacts, Placement, PlacementMode
from stoker.core.state.record import queue_defined_devices
from stoker.core.state.state import State


def join(state: State, facts: NodeFacts, held: list[Placement]) -> None:
    """Add a node; the first one also has the devices that queues define."""
    record = state.record
    if next(iter(record.nodes), facts.name) == facts.name:
        more = queue_defined_devices(record.queues.values(), facts, record.nodes)
        facts = replace(facts, types={**facts.types, **more})
    state.cluster.add_node(facts, held)


def rejoin(state: State, facts: NodeFacts) -> None:
    """Replace the devices of a node; running attempts keep their allocations."""
    join(state, facts, held_on(state.running.values(), facts.name))
    apply_node_marks(state, facts.name)


def rejoin_first_node(state: State) -> None:
    """Update the devices that queues define on the first node."""
    for facts in list(state.record.nodes.values())[:1]:
        rejoin(state, facts)
    state.recount_demands()


def move_queue_devices(state: State) -> list[str]:
    """Find the devices of queues again, after nodes came, went or changed their GPUs.

    Returns the queues with pending jobs that may use other GPUs than before.
    """
    queues = [
        queue.name
        for queue in state.record.queues.values()
        if any(type == GPU for type, _, _ in queue.resources)
    ]
    if queues:
        state.update_queue_devices()
        rejoin_first_node(state)
    return queues


def apply_node_marks(state: State, name: str) -> None:
    """Apply availability, drains and foreign use of a node, as recorded, to the ledger."""
    record, node = state.record, state.cluster.nodes.get(name)
    if node is None:
        return
    state.cluster.mark_changed(name)
    if not node.removed:
        node.unavailable_reason = _unavailable_reason(state, name)
    foreign_load = dict(zip((CPU, MEMORY), record.foreign_load.get(name, ()), strict=False))
    for device in node.devices():
        key = f"{name}/{device.type}:{device.name}"
        foreign_user, device.foreign_memory = record.foreign_use.get(key, ("", 0))
        device.foreign_user = foreign_user or None
        device.drained = record.drained.get(key)
        device.used_by_others = foreign_load.get(device.type, 0)


def update_delegated_capacity(state: State, placement: Placement | None) -> None:
    """Update whether a delegated node is full, after a job was placed there, started or left."""
    node = state.cluster.nodes.get(placement.node) if placement is not None else None
    if node is None or not node.delegated or node.removed:
        return
    reason = _unavailable_reason(state, node.name)
    if reason != node.unavailable_reason:
        node.unavailable_reason = reason
        state.cluster.mark_changed(node.name)
        state.pending.request_planning()


def _unavailable_reason(state: State, name: str) -> str | None:
    """Return why nothing new is placed on a node, or None."""
    if (unreachable := state.record.unreachable.get(name)) is not None:
        return unreachable.reason
    if name in state.record.abandoned_attempts:
        return "jobs abandoned there have not ended yet"
    if name in state.record.cordoned:
        return state.record.cordoned[name]
    facts = state.record.nodes.get(name)
    if facts is not None and facts.on_demand:
        return "its nodes are added when jobs need them"
    if facts is not None and facts.placement is PlacementMode.DELEGATED:
        waiting = len(state.in_flight(name))
        if waiting < facts.max_in_flight:
            return None
        what = "1 job waits" if waiting == 1 else f"{waiting} jobs wait"
        return f"{what} in its queue"
    return None


def held_on(jobs: Iterable[Job], node: str) -> list[Placement]:
    """Return the allocations of running jobs on a node."""
    return [part for job in jobs if job.holding for part in job.parts if part.node == node]
