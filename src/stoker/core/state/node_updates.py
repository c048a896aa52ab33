"""Apply the nodes of the cluster record to the ledger: devices, availability, foreign use."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from stoker.core.model.hardware import NodeFacts, Placement
from stoker.core.model.job import Job
from stoker.core.model.resources import CPU, GPU, MEMORY
from stoker.core.state.record import queue_defined_devices
from stoker.core.state.state import State


def join(state: State, facts: NodeFacts, held: list[Placement]) -> None:
    """Add a node; the first one also has the devices that queues define."""
    more = {}
    if _is_first(state, facts):
        more = queue_defined_devices(state.record.queues.values(), facts, state.record.nodes)
    types = {**facts.types, **more}
    known_models = len(state.cluster.gpu_models)
    state.cluster.add_node(replace(facts, types=types) if more else facts, held)
    if len(state.cluster.gpu_models) != known_models:
        state.recount_demands()


def rejoin(state: State, facts: NodeFacts) -> None:
    """Replace the devices of a node; running attempts keep their allocations."""
    join(state, facts, held_on(state.running.values(), facts.name))
    apply_node_marks(state, facts.name)


def rejoin_first_node(state: State) -> None:
    """Update the devices that queues define on the first node."""
    for facts in list(state.record.nodes.values())[:1]:
        rejoin(state, facts)


def move_queue_devices(state: State) -> list[str]:
    """Find the devices of queues again, after nodes came, went or changed their GPUs.

    Returns the queues with pending jobs that may use other GPUs than before.
    """
    queues = [
        queue.name
        for queue in state.record.queues.values()
        if any(type == GPU for type, _, _ in queue.resources)
    ]
    for name in queues:
        state.forget_queue_devices(name)
    if queues:
        rejoin_first_node(state)
    return queues


def apply_node_marks(state: State, only: str | None = None) -> None:
    """Apply availability, foreign load, drains and foreign use of nodes to the ledger."""
    for name in state.cluster.nodes if only is None else (only,):
        node = state.cluster.nodes[name]
        state.cluster.mark_changed(name)
        if node.removed:
            continue
        node.unavailable_reason = _unavailable_reason(state, name)
        for type, amount in zip(
            (CPU, MEMORY), state.record.foreign_load.get(name, (0, 0)), strict=True
        ):
            for device in node.types.get(type, ()):
                device.used_by_others = amount
    for key, reason in state.record.drained.items():
        for device in state.cluster.devices_with_key(key):
            device.drained = reason
    for key, (user, memory) in state.record.foreign_use.items():
        for device in state.cluster.devices_with_key(key):
            device.foreign_user, device.foreign_memory = user or None, memory


def count_in_flight(state: State, job: Job) -> None:
    """Count a job that is placed on a delegated node and not started; the node may be full."""
    if job.placement is None or not state.is_delegated(job):
        return
    if job.started_at is None:
        state.in_flight.setdefault(job.placement.node, set()).add(job.id)
        _update_delegated_capacity(state, job.placement.node)
    else:
        count_out(state, job, job.placement.node)


def count_out(state: State, job: Job, name: str) -> None:
    """Count out a job that started or left a delegated node."""
    waiting = state.in_flight.get(name, set())
    waiting.discard(job.id)
    if not waiting:
        state.in_flight.pop(name, None)
    _update_delegated_capacity(state, name)


def _update_delegated_capacity(state: State, name: str) -> None:
    node, reason = state.cluster.nodes.get(name), _unavailable_reason(state, name)
    if node is not None and not node.removed and reason != node.unavailable_reason:
        node.unavailable_reason = reason
        state.cluster.mark_changed(name)
        state.pending.request_planning()


def _unavailable_reason(state: State, name: str) -> str | None:
    """Return why nothing new is placed on a node, or None."""
    if (unreachable := state.record.unreachable.get(name)) is not None:
        return unreachable.reason
    if name in state.record.abandoned_attempts:
        return "jobs abandoned there have not ended yet"
    if name in state.record.cordoned:
        return state.record.cordoned[name]
    facts, waiting = state.record.nodes.get(name), len(state.in_flight.get(name, ()))
    if facts is not None and facts.on_demand:
        return "its nodes are added when jobs need them"
    if facts is not None and waiting >= facts.max_in_flight:
        what = "1 job waits" if waiting == 1 else f"{waiting} jobs wait"
        return f"{what} in its queue"
    return None


def _is_first(state: State, facts: NodeFacts) -> bool:
    return next(iter(state.record.nodes), facts.name) == facts.name


def held_on(jobs: Iterable[Job], node: str) -> list[Placement]:
    """Return the allocations of running jobs on a node."""
    return [
        part
        for job in jobs
        if job.holding and job.placement is not None
        if (part := job.placement.on(node)) is not None
    ]
