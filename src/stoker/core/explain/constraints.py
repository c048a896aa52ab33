"""What keeps a job from starting on each node, per resource."""

from __future__ import annotations

from msgspec import Struct

from stoker.core.cluster.node import Device, Node
from stoker.core.measurement.foreign_use import in_words
from stoker.core.model.hardware import SHARED_SLOT
from stoker.core.model.job import Job
from stoker.core.model.resources import GPU, MEMORY, GpuRequest, ResourceRequest, describe
from stoker.core.model.units import THOUSAND, format_amount, format_duration
from stoker.core.placement.compatibility import allowed_devices, is_compatible
from stoker.core.placement.fit import fit
from stoker.core.placement.infeasible import infeasibility_reason
from stoker.core.placement.request_shape import non_gpu_amounts
from stoker.core.state.record import NOT_REACHED_YET
from stoker.core.state.state import State


class Constraint(Struct, frozen=True):
    """A resource that a node lacks for a job at present."""

    name: str
    needs: str
    free: str
    text: str
    details: tuple[str, ...] = ()
    """Per device, why it cannot be used."""


class NodeView(Struct, frozen=True):
    """The constraints of one node."""

    node: str
    fits_empty: bool
    constraints: tuple[Constraint, ...]


def node_constraints(state: State, request: ResourceRequest, boot: float) -> tuple[NodeView, ...]:
    """Return the constraints of each node; if nodes were requested, of these only."""
    views = [
        _node_view(state, node, request, boot)
        for name, node in state.cluster.nodes.items()
        if not request.nodes or name in request.nodes
    ]
    for name, added in state.record.remotes.items():
        if added.cluster:  # an allocation that is not there yet: see the node of its cluster
            continue
        if name not in state.cluster.nodes and (not request.nodes or name in request.nodes):
            away = state.record.unreachable.get(name)
            reason = away.reason if away else NOT_REACHED_YET
            text = f"the resources of {name} are not known yet: {reason}"
            views.append(NodeView(name, True, (Constraint("reach", "", "", text),)))
    return tuple(views)


def _node_view(state: State, node: Node, request: ResourceRequest, boot: float) -> NodeView:
    lack = infeasibility_reason(node, request)
    if lack is None and node.on_demand:
        text = allocation_text(state, node)
        return NodeView(node.name, True, (Constraint("allocation", "", "", text),))
    if lack is None and node.unavailable_reason is not None:
        text = f"{node.name} accepts no new jobs: {node.unavailable_reason}"
        if node.name in state.record.unreachable:
            text = f"{node.name} is unreachable: {node.unavailable_reason}"
        return NodeView(node.name, True, (Constraint("reach", "", "", text),))
    if lack is not None:
        constraint = Constraint("machine", describe(request), "", f"{node.name} {lack}")
        return NodeView(node.name, False, (constraint,))
    if fit(node, request) is not None:
        return NodeView(node.name, True, ())
    constraints: list[Constraint] = []
    if request.exclusive:
        labels = sorted(
            job.label
            for job in state.running.values()
            if job.placement is not None and job.placement.on(node.name) is not None
        )
        text = f"needs {node.name} exclusively; jobs {', '.join(labels)} run there"
        constraints.append(Constraint("exclusive", "all", "", text))
    elif request.gpus is not None and request.gpus.amount:
        constraints += _gpu_constraint(state, node, request.gpus, boot)
    for type, amount in non_gpu_amounts(request):
        devices = allowed_devices(node, request, type)
        free = max((device.available for device in devices), default=0)
        if all(device.facts.capacity == THOUSAND for device in devices):
            free = sum(device.available for device in devices)
        if free < amount:
            shown = (lambda n: f"{n} MiB") if type == MEMORY else format_amount
            text = f"needs {shown(amount)} {type}, {shown(free)} free on {node.name}"
            constraints.append(Constraint(type, shown(amount), shown(free), text))
    return NodeView(node.name, True, tuple(constraints))


def allocation_text(state: State, cluster: Node) -> str:
    """Return what a job waits for that a cluster can run."""
    name, record = cluster.name, state.record
    if name in record.unreachable:
        return f"{name} is unreachable: {record.unreachable[name].reason}"
    if name in record.cordoned:
        return f"{name} provides no allocation: {record.cordoned[name]}"
    members = [node for node, added in record.remotes.items() if added.cluster == name]
    waiting = [record.unreachable[node].reason for node in members if node in record.unreachable]
    if waiting:
        reason = "" if waiting[0] == NOT_REACHED_YET else f" ({waiting[0]})"
        return f"waits for an allocation of {name}{reason}"
    if len(members) >= cluster.on_demand:
        count = "the one allocation" if len(members) == 1 else f"all {len(members)} allocations"
        return f"{name} has {count} that it may have; they are in use"
    return f"waits for an allocation of {name}"


def _gpu_constraint(state: State, node: Node, gpus: GpuRequest, boot: float) -> list[Constraint]:
    fitting = [device for device in node.types.get(GPU, ()) if is_compatible(device, gpus)]
    free = 0
    notes: list[str] = []
    for device in fitting:
        obstacle = _obstacle(state, node, device, gpus, boot)
        if obstacle is None:
            free += THOUSAND if gpus.shareable else device.unallocated
        else:
            notes.append(f"GPU {device.name} {obstacle}")
    if gpus.memory is not None and not notes and free >= gpus.amount:
        notes.append(f"none has {gpus.memory} MiB of its memory left")
    plural = "GPU" if gpus.amount <= THOUSAND else "GPUs"
    needs, left = format_amount(gpus.amount), format_amount(free)
    text = f"needs {needs} {plural}, {left} free on {node.name}"
    if free >= gpus.amount and not notes:
        return []
    return [Constraint("gpus", needs, left, text, tuple(notes))]


def _obstacle(
    state: State, node: Node, device: Device, gpus: GpuRequest, boot: float
) -> str | None:
    """Return why one GPU cannot be used, in words; None if it can."""
    if device.drained is not None:
        return f"is drained ({device.drained})" if device.drained else "is drained"
    if device.foreign_user is not None and not gpus.ignore_foreign_use:
        return in_words(device.foreign_user)
    needed = min(gpus.amount, THOUSAND)
    if device.unallocated >= needed and not gpus.shareable:
        return None
    if gpus.shareable and device.unallocated == THOUSAND - device.sharers * SHARED_SLOT:
        left = device.memory_free - device.foreign_memory
        if gpus.memory is None or left >= gpus.memory:
            return None
        beside = f", beside {_holders(state, node, device, boot)}" if device.sharers else ""
        return f"has {left} MiB of its memory left, not {gpus.memory} MiB{beside}"
    return "is held by " + _holders(state, node, device, boot)


def _holders(state: State, node: Node, device: Device, boot: float) -> str:
    return " and ".join(
        _holder(state, job, boot)
        for job in state.running.values()
        if job.placement is not None
        and (part := job.placement.on(node.name)) is not None
        and any(item.type == GPU and item.device == device.name for item in part.allocations)
    )


def _holder(state: State, job: Job, boot: float) -> str:
    limit = state.spec(job).limit
    if limit is None or job.started_boot is None:
        return f"job {job.label}"
    left = job.started_boot + limit + job.slack - boot
    return f"job {job.label} (at most {format_duration(left)} more)"
