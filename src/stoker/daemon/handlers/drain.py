"""Drain and undrain devices."""

from __future__ import annotations

from collections.abc import Container, Mapping

from stoker.core import events as e
from stoker.core.cluster.node import Node
from stoker.core.model.job import Job
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext
from stoker.daemon.selectors import find_devices
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import requests as r
from stoker.schema.node import DrainReply

DeviceId = tuple[str, str, str]
"""Node, type and name of a device."""


def drain(context: RequestContext, body: r.Drain, state: State, now: Instant) -> CommandResult:
    """Start no more jobs on these devices; running jobs continue."""
    devices = _parse_devices(state, body.devices)
    event = e.DevicesDrained(at=now.wall, devices=tuple(devices), reason=body.reason)
    return _result(event, state, devices, _running_on(state, devices))


def undrain(context: RequestContext, body: r.Undrain, state: State, now: Instant) -> CommandResult:
    """Start jobs on these devices again."""
    devices = _parse_devices(state, body.devices)
    event = e.DevicesUndrained(at=now.wall, devices=tuple(devices))
    return _result(event, state, devices, [])


def _result(
    event: e.Event, state: State, devices: Mapping[DeviceId, None], running: list[Job]
) -> CommandResult:
    nodes = state.cluster.nodes.values()
    reply = DrainReply(
        devices=[f"{node}/{type}:{name}" for node, type, name in devices],
        machines=[node.name for node in nodes if _is_whole_node(node, devices)],
        running=[job.id for job in running],
        labels=[job.label for job in running],
    )
    return CommandResult(events=[event], reply=lambda _: reply)


def _running_on(state: State, devices: Container[DeviceId]) -> list[Job]:
    return [
        job
        for job in state.running.values()
        if job.placement is not None
        and any(
            (part.node, take.type, take.device) in devices
            for part in job.placement.parts
            for take in part.allocations
        )
    ]


def _is_whole_node(node: Node, devices: Container[DeviceId]) -> bool:
    """Return True if these are all devices of a node that has several."""
    all_devices = [
        (node.name, device.type, device.name) for device in node.devices() if not device.removed
    ]
    return len(all_devices) > 1 and all(device in devices for device in all_devices)


def _parse_devices(state: State, texts: list[str]) -> dict[DeviceId, None]:
    """Return the named devices, each once, in the order in which they were named."""
    if not texts:
        raise CommandRejected("No device was named. Use a GPU's id, or all.", "usage")
    devices: dict[DeviceId, None] = {}
    for text in texts:
        for name in filter(None, text.split(",")):
            devices.update(dict.fromkeys(_find_devices(state, name.strip())))
    return devices


def _find_devices(state: State, name: str) -> list[DeviceId]:
    """Return the devices that a name selects; a node's name selects all, `a:0` equals `a/0`."""
    nodes = state.cluster.nodes
    head, colon, tail = name.partition(":")
    matches = find_devices(state.cluster, name)
    if not matches and name in nodes:
        matches = find_devices(state.cluster, f"{name}/all")
    if not matches and colon and head in nodes:
        matches = find_devices(state.cluster, f"{head}/{tail}")
    if not matches and name in state.record.remotes and name not in nodes:
        raise CommandRejected(
            f"The devices of {name} are not known: it was not reached yet; see stoker nodes.",
            "failed",
        )
    if not matches:
        raise CommandRejected(f"There is no device '{name}'; see stoker gpus.", "not_found")
    node_names = list(dict.fromkeys(node.name for node, _ in matches))
    if len(node_names) > 1 and "/" not in name and name.rpartition(":")[2] != "all":
        choices = " or ".join(f"{node}/{name}" for node in node_names[:4])
        raise CommandRejected(f"'{name}' is on {len(node_names)} nodes; write {choices}.", "usage")
    return [(node.name, device.type, device.name) for node, device in matches]
