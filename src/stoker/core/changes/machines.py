"""Machines, devices, strangers and queues."""

from __future__ import annotations

from stoker.core import events as e
from stoker.core.changes import remotes
from stoker.core.cluster import DeviceFacts, NodeFacts
from stoker.core.instructions import Instruction
from stoker.core.request import GPU
from stoker.core.standings import other_policies, readmit, readmit_for_nodes
from stoker.core.state import State

Wishes = list[Instruction]


def on_daemon_started(state: State, event: e.DaemonStarted) -> Wishes:
    """Another driver, perhaps another boot of the machine, that looks for strangers anew."""
    rebooted = state.rest.boot not in ("", event.boot)
    state.rest.term, state.rest.boot = event.term, event.boot
    remotes.on_start(state, event, rebooted)
    for key in state.rest.strangers:
        for device in state.cluster.named(key):
            device.stranger, device.stranger_memory = None, 0
            state.cluster.changed(key.partition("/")[0])
    state.rest.strangers = {}
    state.rest_changed = True
    return []


def on_node_joined(state: State, event: e.NodeJoined) -> Wishes:
    """A machine says what it has; running attempts keep what they hold."""
    state.line.stirred = True
    before = state.rest.nodes.get(event.facts.name)
    state.rest.nodes[event.facts.name] = event.facts
    state.rejoin(event.facts)
    if state.rest.lacking or before is None or _gpus(before) != _gpus(event.facts):
        readmit_for_nodes(state, event.at)
    state.rest_changed = True
    return []


def _gpus(facts: NodeFacts) -> tuple[DeviceFacts, ...]:
    return facts.types.get(GPU, ())


def on_devices_drained(state: State, event: e.DevicesDrained) -> Wishes:
    """What runs there goes on; nothing new starts."""
    for node, type, name in event.devices:
        state.rest.drained[f"{node}/{type}:{name}"] = event.reason
        device = state.cluster.nodes[node].by_name.get((type, name))
        if device is not None:
            device.drained = event.reason
            state.cluster.changed(node)
    state.rest_changed = True
    return []


def on_devices_undrained(state: State, event: e.DevicesUndrained) -> Wishes:
    """Open again."""
    state.line.stirred = True
    for node, type, name in event.devices:
        state.rest.drained.pop(f"{node}/{type}:{name}", None)
        device = state.cluster.nodes[node].by_name.get((type, name))
        if device is not None:
            device.drained = None
            state.cluster.changed(node)
    state.rest_changed = True
    return []


def on_foreign_use_changed(state: State, event: e.ForeignUseChanged) -> Wishes:
    """A stranger came to a GPU, or left it."""
    state.line.stirred = True
    node = state.cluster.nodes.get(event.node)
    device = node.by_name.get(("gpu", event.device)) if node else None
    key = f"{event.node}/gpu:{event.device}"
    state.rest.strangers.pop(key, None)
    if device is not None:
        device.stranger, device.stranger_memory = event.stranger, event.memory
        state.cluster.changed(event.node)
        if event.stranger is not None or event.memory:
            state.rest.strangers[key] = (event.stranger or "", event.memory)
    state.rest_changed = True
    return []


def on_queue_defined(state: State, event: e.QueueDefined) -> Wishes:
    """A named queue, new or changed."""
    before = state.rest.queues.get(event.name)
    state.rest.queues[event.name] = event
    _changed(state, event, before)
    return []


def on_queue_deleted(state: State, event: e.QueueDeleted) -> Wishes:
    """A named queue's limits are gone; its jobs go on."""
    before = state.rest.queues.pop(event.name, None)
    _changed(state, event, before)
    return []


def _changed(
    state: State, event: e.QueueDefined | e.QueueDeleted, before: e.QueueDefined | None
) -> None:
    """A queue may have brought devices along, or taken them with it."""
    state.policies.forget()
    state.line.stirred = True
    state.rest_changed = True
    brings = event.resources if isinstance(event, e.QueueDefined) else ()
    if brings or (before is not None and before.resources):
        state.rejoin_first()
    readmit(state, None if state.rest.lacking else event.name, event.at)


def on_policy_chosen(state: State, event: e.PolicyChosen) -> Wishes:
    """A queue is worked off in another way from now on; what runs goes on."""
    if event.name:
        state.rest.policies[event.queue] = (event.name, dict(event.parameters))
    else:
        state.rest.policies.pop(event.queue, None)
    state.rest.policies_since[event.queue] = event.at
    state.rest_changed = True
    state.policies.forget()
    state.line.stirred = True
    other_policies(state, None if event.queue == "*" else event.queue, event.at)
    return []
