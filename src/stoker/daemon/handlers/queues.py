"""Define and delete named queues; hide finished jobs from the history of a compat command."""

from __future__ import annotations

from stoker.core import events as e
from stoker.core.model.job import JobState
from stoker.core.model.resources import CPU, GPU, MEMORY
from stoker.core.model.units import BadValue, format_amount, parse_amount
from stoker.core.state.record import counted_gpus
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext
from stoker.daemon.selectors import find_devices
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import requests as r
from stoker.schema.queue import HiddenHistory, QueueName

ANY_CAPACITY = -1
"""Capacity of a device that no node and no other queue has defined."""


def define_queue(
    context: RequestContext, body: r.Queue, state: State, now: Instant
) -> CommandResult:
    """Create or change a named queue."""
    if body.new and body.name in state.record.queues:
        raise CommandRejected(f"Queue '{body.name}' already exists.", "failed")
    for name in body.devices or ():
        if not find_devices(state.cluster, name):
            raise CommandRejected(f"There is no device '{name}'; see stoker gpus.", "not_found")
    event = e.QueueDefined(
        at=now.wall, name=body.name, max_running=body.max_running,
        max_gpus=_amount(body.max_gpus, "max_gpus"), priority=body.priority,
        strict=body.strict, devices=tuple(body.devices or ()),
        resources=_resources(state, body), max_waiting=body.max_waiting,
        max_job_gpus=_amount(body.max_job_gpus, "max_job_gpus"),
    )  # fmt: skip
    return CommandResult(events=[event], reply=lambda _: QueueName(name=body.name))


def _amount(text: str | None, what: str) -> int | None:
    return parse_amount(text, what) if text else None


def _resources(state: State, body: r.Queue) -> tuple[tuple[str, str, int], ...]:
    """Return the devices of a queue; raise BadValue if they contradict nodes or other queues."""
    capacities: dict[tuple[str, str], int] = {}
    for resource in body.resources or ():
        if resource.type in (CPU, MEMORY):
            raise BadValue(f"{resource.type} is a pooled resource without named devices.")
        amount = parse_amount(resource.capacity, resource.type)
        capacities[resource.type, resource.device] = amount
    sizes = {name: capacity for (type, name), capacity in capacities.items() if type == GPU}
    counted = len(counted_gpus(sizes, state.record.nodes))
    if counted and counted < len(sizes):
        raise BadValue(
            f"There is no gpu '{counted}': all nodes together have {counted} GPUs, the queue asks"
            f" for {len(sizes)}; see stoker nodes."
        )
    for (type, device), capacity in capacities.items():
        if type == GPU and counted:
            continue
        known = _known_capacity(state, body.name, type, device)
        if known is None:
            raise BadValue(f"There is no {type} '{device}'; see stoker nodes.")
        if known not in (capacity, ANY_CAPACITY):
            raise BadValue(
                f"{type} '{device}' has a capacity of {format_amount(known)}, not"
                f" {format_amount(capacity)}: write the same for every queue."
            )
    return tuple((type, device, capacity) for (type, device), capacity in capacities.items())


def _known_capacity(state: State, queue: str, type: str, device: str) -> int | None:
    """Return the capacity of a device, ANY_CAPACITY if not defined, None if it does not exist."""
    nodes = [facts for facts in state.record.nodes.values() if type in facts.types]
    for node in nodes:
        for facts in node.types[type]:
            if device in (facts.name, f"{node.name}/{facts.name}"):
                return facts.capacity
    if nodes:
        return None
    for other in state.record.queues.values():
        for other_type, name, capacity in other.resources:
            if other.name != queue and (other_type, name) == (type, device):
                return capacity
    return ANY_CAPACITY


def hide_history(
    context: RequestContext, body: r.HideHistory, state: State, now: Instant
) -> CommandResult:
    """Hide finished jobs from the history of a compat command; the store keeps them."""
    event = e.HistoryCleared(at=now.wall, client=body.client, uid=context.uid)
    return CommandResult(events=[event], reply=lambda _: HiddenHistory(client=body.client))


def delete_queue(name: str, state: State, now: Instant) -> CommandResult:
    """Delete a named queue; its running jobs continue and keep their devices."""
    if name not in state.record.queues:
        raise CommandRejected(f"There is no queue '{name}'.", "not_found")
    pending = sum(
        job.state is JobState.PENDING and state.spec(job).queue == name
        for job in state.jobs.values()
    )
    if pending:
        raise CommandRejected(
            f"In queue '{name}' {pending} job{'s are' * (pending > 1) or ' is'} pending;"
            f" cancel {'them' if pending > 1 else 'it'} first.",
            "failed",
        )
    event = e.QueueDeleted(at=now.wall, name=name)
    return CommandResult(events=[event], reply=lambda _: QueueName(name=name))
