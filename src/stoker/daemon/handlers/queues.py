"""Named queues: their limits, and the devices they have or bring along."""

from __future__ import annotations

from stoker.core import events as e
from stoker.core.lifecycle import JobState
from stoker.core.request import CPU, GPU, MEMORY
from stoker.core.rest import counted_gpus
from stoker.core.state import State
from stoker.core.units import BadValue, format_amount, parse_amount
from stoker.daemon.context import CommandHandler, RequestContext
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import requests as r

ANY = -1
"""The capacity of a device that nobody has named yet."""


def define_queue(desk: RequestContext, body: r.Queue) -> CommandHandler:
    """Make or change a named queue."""

    def decide(state: State, now: Instant) -> CommandResult:
        if body.new and body.name in state.rest.queues:
            raise CommandRejected(f"Queue '{body.name}' already exists.", "failed")
        for word in body.devices or ():
            if not state.cluster.find(word):
                raise CommandRejected(f"There is no device '{word}'; see stoker gpus.", "not_found")
        try:
            fact = e.QueueDefined(
                at=now.wall, name=body.name, max_running=body.max_running,
                max_gpus=_amount(body.max_gpus, "max_gpus"), priority=body.priority,
                strict=body.strict, devices=tuple(body.devices or ()),
                resources=_resources(state, body), max_waiting=body.max_waiting,
                max_job_gpus=_amount(body.max_job_gpus, "max_job_gpus"),
            )  # fmt: skip
        except BadValue as error:
            raise CommandRejected(str(error), "usage") from None
        return CommandResult(events=[fact], reply=lambda _: {"name": body.name})

    return decide


def _amount(text: str | None, what: str) -> int | None:
    return parse_amount(text, what) if text else None


def _resources(state: State, body: r.Queue) -> tuple[tuple[str, str, int], ...]:
    """A queue's devices, once it is certain that nobody else counts them otherwise."""
    found: dict[tuple[str, str], int] = {}
    for each in body.resources or ():
        if each.type in (CPU, MEMORY):
            raise BadValue(f"{each.type} is a pooled resource without named devices.")
        found[each.type, each.device] = parse_amount(each.capacity, each.type)
    sizes = {name: capacity for (type, name), capacity in found.items() if type == GPU}
    counted = len(counted_gpus(sizes, state.rest.nodes))
    if counted and counted < len(sizes):
        raise BadValue(
            f"There is no gpu '{counted}': all nodes together have {counted} GPUs, the queue asks"
            f" for {len(sizes)}; see stoker nodes."
        )
    for (type, device), capacity in found.items():
        if type == GPU and counted:
            continue
        known = _known_capacity(state, body.name, type, device)
        if known is None:
            raise BadValue(f"There is no {type} '{device}'; see stoker nodes.")
        if known not in (capacity, ANY):
            raise BadValue(
                f"{type} '{device}' has a capacity of {format_amount(known)}, not"
                f" {format_amount(capacity)}: write the same for every queue."
            )
    return tuple((type, device, capacity) for (type, device), capacity in found.items())


def _known_capacity(state: State, queue: str, type: str, device: str) -> int | None:
    """How much a device can give; ANY when this queue is the first to say, None if not there."""
    machines = [facts for facts in state.rest.nodes.values() if type in facts.types]
    for node in machines:
        for facts in node.types[type]:
            if device in (facts.name, f"{node.name}/{facts.name}"):
                return facts.capacity
    if machines:
        return None
    for other in state.rest.queues.values():
        for each, name, capacity in other.resources:
            if other.name != queue and (each, name) == (type, device):
                return capacity
    return ANY


def clear(desk: RequestContext, body: r.Clear) -> CommandHandler:
    """Wipe what a front door shows of the past; the store keeps it."""

    def decide(state: State, now: Instant) -> CommandResult:
        fact = e.RecordsCleared(at=now.wall, door=body.door)
        return CommandResult(events=[fact], reply=lambda _: {"door": body.door})

    return decide


def delete_queue(desk: RequestContext, name: str) -> CommandHandler:
    """Delete a named queue; what runs in it goes on, and keeps its devices."""

    def decide(state: State, now: Instant) -> CommandResult:
        if name not in state.rest.queues:
            raise CommandRejected(f"There is no queue '{name}'.", "not_found")
        waiting = sum(
            job.state is JobState.PENDING and state.spec(job).queue == name
            for job in state.jobs.values()
        )
        if waiting:
            raise CommandRejected(
                f"In queue '{name}' {waiting} job{'s are' * (waiting > 1) or ' is'} pending;"
                f" cancel {'them' if waiting > 1 else 'it'} first.",
                "failed",
            )
        fact = e.QueueDeleted(at=now.wall, name=name)
        return CommandResult(events=[fact], reply=lambda _: {"name": name})

    return decide
