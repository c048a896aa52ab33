"""What keeps a job from starting on each node, per resource."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from msgspec import Struct

from stoker.core.cluster.node import Device, Node
from stoker.core.measurement.foreign_use import in_words
from stoker.core.model.job import Job
from stoker.core.model.resources import (
    GPU,
    MEMORY,
    SHARED_SLOT,
    GpuRequest,
    Placement,
    ResourceRequest,
    describe,
)
from stoker.core.model.units import THOUSAND, approximate_duration, format_amount, format_duration
from stoker.core.placement.advance import blocking_reservations
from stoker.core.placement.compatibility import allowed_devices, for_node, is_compatible
from stoker.core.placement.fit import fit
from stoker.core.placement.horizon import usable_until
from stoker.core.placement.infeasible import infeasibility_reason
from stoker.core.placement.request_shape import non_gpu_amounts
from stoker.core.state.record import NOT_REACHED_YET
from stoker.core.state.state import State

MAX_LISTED = 5
"""Constraints, devices, jobs or alternatives of one kind that an explanation lists."""


class Constraint(Struct, frozen=True):
    """A resource that a node lacks for a job at present."""

    name: str
    text: str
    needs: str = ""
    free: str = ""
    details: tuple[str, ...] = ()
    """Per device, why it cannot be used."""


class NodeView(Struct, frozen=True):
    """The constraints of one node."""

    node: str
    fits_empty: bool
    constraints: tuple[Constraint, ...]


def node_constraints(
    state: State, job: Job, request: ResourceRequest, at: float, boot: float
) -> tuple[NodeView, ...]:
    """Return the constraints of each node; if nodes were requested, of these only."""
    views = []
    for name, node in state.cluster.nodes.items():
        if not request.nodes or name in request.nodes:
            if (lack := infeasibility_reason(node, request)) is None:
                constraints = tuple(_constraints(state, job, node, request, at, boot))
            else:
                constraints = (Constraint("machine", f"{name} {lack}", describe(request)),)
            views.append(NodeView(name, lack is None, constraints))
    for name, added in state.record.remotes.items():
        if added.cluster:  # an allocation that is not there yet: see the node of its cluster
            continue
        if name not in state.cluster.nodes and (not request.nodes or name in request.nodes):
            away = state.record.unreachable.get(name)
            reason = away.reason if away else NOT_REACHED_YET
            text = f"the resources of {name} are not known yet: {reason}"
            views.append(NodeView(name, True, (Constraint("reach", text),)))
    return tuple(views)


def reserved_text(state: State, job: Job, at: float) -> str | None:
    """Return which advance reservations keep a job from starting, None if there are none."""
    occupation = state.occupation(job, at)
    texts = []
    for each in blocking_reservations(state.cluster, occupation, at):
        what = ", ".join((*each.nodes, *each.gpus)[:MAX_LISTED])
        who = ", ".join(subject.text for subject in each.subjects) or "no job"
        if each.begin <= at:
            when = f"for another {approximate_duration(each.end - at)}"
        else:
            length = f"up to {approximate_duration(occupation.seconds)}"
            runs = "has no time limit" if occupation.seconds == inf else f"may run {length}"
            when = f"in {approximate_duration(each.begin - at)}, and the job {runs}"
        texts.append(f"{what} reserved for {who} ({each.name}) {when}")
    return "; ".join(texts) or None


def end_text(state: State, job: Job, name: str, at: float) -> str | None:
    """Return that a node ends too soon for a job to start there; None if it does not."""
    end, needed = state.cluster.node_ends.get(name), state.spec(job).time_needed
    if end is None or usable_until(state.cluster, name, at + needed):
        return None
    text = f"{name} ends in {approximate_duration(max(end - at, 0.0))}"
    return f"{text}, the job's limit is {approximate_duration(needed)}" if needed else text


def limit_text(state: State, job: Job, cluster: str) -> str | None:
    """Return that the time limit of a job is too long for the nodes that a cluster provides."""
    facts, needed = state.record.nodes.get(cluster), state.spec(job).time_needed
    if facts is None or not facts.max_seconds or needed <= facts.max_seconds:
        return None
    longest, limit = approximate_duration(facts.max_seconds), approximate_duration(needed)
    return f"allocations of {cluster} are for jobs of at most {longest}, the job's limit is {limit}"


def _constraints(
    state: State, job: Job, node: Node, request: ResourceRequest, at: float, boot: float
) -> Iterator[Constraint]:
    """Yield what keeps a job from starting on a node that could run it."""
    if node.on_demand:
        yield Constraint("allocation", allocation_text(state, job, node))
    elif node.unavailable_reason is not None:
        is_unreachable = node.name in state.record.unreachable
        status = "is unreachable" if is_unreachable else "accepts no new jobs"
        yield Constraint("reach", f"{node.name} {status}: {node.unavailable_reason}")
    elif (end := end_text(state, job, node.name, at)) is not None:
        yield Constraint("end", end)
    elif fit(node, request) is None:
        if request.exclusive:
            labels = ", ".join(sorted(job.label for job, _ in _jobs_on(state, node)))
            text = f"needs {node.name} exclusively; jobs {labels} run there"
            yield Constraint("exclusive", text, needs="all")
        elif request.gpus is not None and request.gpus.amount:
            yield from _gpu_constraint(state, node, request.gpus, boot)
        for type, amount in non_gpu_amounts(request):
            devices = allowed_devices(node, request, type)
            free = max((device.available for device in devices), default=0)
            if all(device.facts.capacity == THOUSAND for device in devices):
                free = sum(device.available for device in devices)
            if free < amount:
                shown = (lambda n: f"{n} MiB") if type == MEMORY else format_amount
                text = f"needs {shown(amount)} {type}, {shown(free)} free on {node.name}"
                yield Constraint(type, text, shown(amount), shown(free))


def _jobs_on(state: State, node: Node) -> Iterator[tuple[Job, Placement]]:
    """Yield the jobs that run on a node, and what each holds there."""
    for job in state.running.values():
        yield from ((job, part) for part in job.parts if part.node == node.name)


def allocation_text(state: State, job: Job, cluster: Node) -> str:
    """Return what a job waits for that a cluster can run, or that it is too long for it."""
    name, record = cluster.name, state.record
    if (limit := limit_text(state, job, name)) is not None:
        return limit
    if name in record.unreachable:
        return f"{name} is unreachable: {record.unreachable[name].reason}"
    if name in record.cordoned:
        return f"{name} provides no allocation: {record.cordoned[name]}"
    members = [
        node
        for node, added in record.remotes.items()
        if added.cluster == name and added.is_allocation
    ]
    waiting = [record.unreachable[node].reason for node in members if node in record.unreachable]
    if not waiting and len(members) >= cluster.on_demand:
        if len(members) == 1:
            return f"{name} has the one allocation that it may have; it is in use"
        return f"{name} has all {len(members)} allocations that it may have; they are in use"
    reason = f" ({waiting[0]})" if waiting and waiting[0] != NOT_REACHED_YET else ""
    return f"waits for an allocation of {name}{reason}"


def _gpu_constraint(state: State, node: Node, gpus: GpuRequest, boot: float) -> list[Constraint]:
    local = for_node(gpus, node.name)
    fitting = [device for device in node.types.get(GPU, ()) if is_compatible(device, local)]
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
    return [Constraint("gpus", text, needs, left, tuple(notes))]


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
    texts = []
    for job, part in _jobs_on(state, node):
        if any(item.type == GPU and item.device == device.name for item in part.allocations):
            texts.append(f"job {job.label}")
            limit = state.spec(job).limit
            if limit is not None and job.started_boot is not None:
                left = job.started_boot + limit + job.slack - boot
                texts[-1] += f" (at most {format_duration(left)} more)"
    return " and ".join(texts)
