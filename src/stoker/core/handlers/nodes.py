"""Handlers of nodes, devices, foreign use, queues and policies."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.core import events as e
from stoker.core.events.instructions import Instructions
from stoker.core.handlers import learning
from stoker.core.handlers.attempts import conclude, end_part
from stoker.core.handlers.outcome import AttemptOutcome, forced_outcome
from stoker.core.model.hardware import DeviceFacts, NodeFacts
from stoker.core.model.job import Job, PartEnd
from stoker.core.model.lifecycle import JobState
from stoker.core.model.resources import GPU
from stoker.core.state.node_updates import apply_node_marks, held_on, rejoin, rejoin_first_node
from stoker.core.state.record import NOT_REACHED_YET, Unreachable
from stoker.core.state.reranking import apply_policy_change, requeue_all, requeue_for_nodes
from stoker.core.state.state import State


def on_daemon_started(state: State, event: e.DaemonStarted) -> Instructions:
    """Note a new daemon, perhaps after a reboot; foreign use is measured again."""
    rebooted = state.record.boot not in ("", event.boot)
    state.record.term, state.record.boot = event.term, event.boot
    _on_remote_start(state, event, rebooted)
    for key in state.record.foreign_use:
        for device in state.cluster.devices_with_key(key):
            device.foreign_user, device.foreign_memory = None, 0
            state.cluster.mark_changed(key.partition("/")[0])
    state.record.foreign_use = {}
    state.changes.record()
    return []


def on_node_joined(state: State, event: e.NodeJoined) -> Instructions:
    """Set the devices of a node; running attempts keep their allocations."""
    state.pending.request_planning()
    before = state.record.nodes.get(event.facts.name)
    state.record.nodes[event.facts.name] = event.facts
    rejoin(state, event.facts)
    if state.record.missing_devices or before is None or _gpus(before) != _gpus(event.facts):
        requeue_for_nodes(state, event.at)
    state.changes.record()
    return []


def _gpus(facts: NodeFacts) -> tuple[DeviceFacts, ...]:
    return facts.types.get(GPU, ())


def on_devices_drained(state: State, event: e.DevicesDrained) -> Instructions:
    """Drain devices: running jobs continue, no job starts there."""
    _set_drained(state, event.devices, event.reason)
    return []


def on_devices_undrained(state: State, event: e.DevicesUndrained) -> Instructions:
    """Undrain devices."""
    _set_drained(state, event.devices, None)
    return []


def _set_drained(state: State, devices: Iterable[tuple[str, str, str]], reason: str | None) -> None:
    """Drain devices for a reason; without one, undrain them."""
    for node, type, name in devices:
        key = f"{node}/{type}:{name}"
        state.record.drained.pop(key, None)
        if reason is not None:
            state.record.drained[key] = reason
        device = state.cluster.nodes[node].by_name.get((type, name))
        if device is not None:
            device.drained = reason
            state.cluster.mark_changed(node)
    state.pending.request_planning()  # what was nominated there is nominated elsewhere
    state.changes.record()


def on_foreign_use_changed(state: State, event: e.ForeignUseChanged) -> Instructions:
    """Record that a foreign process started or stopped using a GPU."""
    state.pending.request_planning()
    node = state.cluster.nodes.get(event.node)
    device = node.by_name.get(("gpu", event.device)) if node else None
    key = f"{event.node}/gpu:{event.device}"
    state.record.foreign_use.pop(key, None)
    if device is not None:
        device.foreign_user, device.foreign_memory = event.foreign_user, event.memory
        state.cluster.mark_changed(event.node)
        if event.foreign_user is not None or event.memory:
            state.record.foreign_use[key] = (event.foreign_user or "", event.memory)
    state.changes.record()
    return []


def on_queue_defined(state: State, event: e.QueueDefined) -> Instructions:
    """Define or change a queue."""
    before = state.record.queues.get(event.name)
    state.record.queues[event.name] = event
    _on_queue_changed(state, event, before)
    return []


def on_queue_deleted(state: State, event: e.QueueDeleted) -> Instructions:
    """Delete the limits of a queue; its jobs stay."""
    before = state.record.queues.pop(event.name, None)
    _on_queue_changed(state, event, before)
    return []


def _on_queue_changed(
    state: State, event: e.QueueDefined | e.QueueDeleted, before: e.QueueDefined | None
) -> None:
    """Update policies, queue-defined devices and pending jobs after a queue changed."""
    state.policies.invalidate()
    state.pending.request_planning()
    state.changes.record()
    resources = event.resources if isinstance(event, e.QueueDefined) else ()
    if resources or (before is not None and before.resources):
        rejoin_first_node(state)
    requeue_all(state, None if state.record.missing_devices else event.name, event.at)


def on_policy_chosen(state: State, event: e.PolicyChosen) -> Instructions:
    """Set the policy of a queue; running jobs continue."""
    if event.name:
        state.record.policies[event.queue] = (event.name, dict(event.parameters))
    else:
        state.record.policies.pop(event.queue, None)
    state.record.policies_since[event.queue] = event.at
    state.changes.record()
    state.policies.invalidate()
    state.pending.request_planning()
    apply_policy_change(state, None if event.queue == "*" else event.queue, event.at)
    return []


def _on_remote_start(state: State, event: e.DaemonStarted, rebooted: bool) -> None:
    """Mark remote nodes unreachable until the new daemon reaches them; their jobs continue."""
    record = state.record
    record.cordoned = {}
    for name in record.remotes:
        before = record.unreachable.get(name)
        if before is None:
            record.unreachable[name] = Unreachable(event.at, event.clock, NOT_REACHED_YET)
        elif rebooted and before.boot_time is not None:
            record.unreachable[name] = Unreachable(
                before.since, _on_new_clock(event, before.since), before.reason
            )
    if rebooted:
        for job in state.running.values():
            if job.placement is not None and job.placement.node in record.remotes:
                _keep_time(job, event)
                state.changes.job(job.id)
    apply_node_marks(state)


def _on_new_clock(event: e.DaemonStarted, at: float) -> float:
    """Return a time before a reboot on the new boot clock; the wall clock may have been set."""
    return event.clock - max(event.at - at, 0.0)


def _keep_time(job: Job, event: e.DaemonStarted) -> None:
    """Convert the times of a running job to the boot clock after a reboot."""
    before, started_at = job.started_boot, job.started_at
    job.started_boot = event.clock if started_at is None else _on_new_clock(event, started_at)
    if job.paused_boot is not None and before is not None:
        job.paused_boot += job.started_boot - before
    if job.progress is not None and before is not None:
        job.progress = job.progress.with_stop_postponed(job.started_boot - before)


def on_node_added(state: State, event: e.NodeAdded) -> Instructions:
    """Add a remote node or change its address; its devices are known once it is reached."""
    before = state.record.remotes.get(event.name)
    state.record.remotes[event.name] = event
    moved = before is None or before.address != event.address
    if moved:
        state.record.cordoned.pop(event.name, None)
    if moved and event.name not in state.record.unreachable:
        state.record.unreachable[event.name] = Unreachable(event.at, None, NOT_REACHED_YET)
    _update_node(state)
    return []


def on_node_removed(state: State, event: e.NodeRemoved) -> Instructions:
    """Remove a node, on which nothing runs but parts of gangs that were given up."""
    record = state.record
    first = next(iter(record.nodes), None)
    for table in (
        record.remotes,
        record.nodes,
        record.unreachable,
        record.cordoned,
        record.foreign_load,
        record.abandoned_attempts,
    ):
        table.pop(event.name, None)
    for marks in (record.drained, record.foreign_use):
        for key in [key for key in marks if key.startswith(f"{event.name}/")]:
            del marks[key]
    _clear_missing(state, event.name)
    state.cluster.remove_node(event.name, held_on(state.running.values(), event.name))
    if event.name == first:
        rejoin_first_node(state)
    requeue_for_nodes(state, event.at)
    _update_node(state)
    return []


def _clear_missing(state: State, node: str) -> bool:
    """Forget which images a node could not run; return whether there were any."""
    images = [
        image
        for image, nodes in state.record.missing_devices.items()
        if nodes.pop(node, None) is not None
    ]
    for image in images:
        if not state.record.missing_devices[image]:
            del state.record.missing_devices[image]
    return bool(images)


def on_node_reached(state: State, event: e.NodeReached) -> Instructions:
    """Mark a node as reachable."""
    state.record.unreachable.pop(event.node, None)
    if _clear_missing(state, event.node):
        requeue_all(state, None, event.at)
    remaining = [
        key for key in state.record.abandoned_attempts.get(event.node, ()) if key not in event.ended
    ]
    state.record.abandoned_attempts.pop(event.node, None)
    if remaining:
        state.record.abandoned_attempts[event.node] = tuple(remaining)
    _update_node(state)
    return []


def on_node_unreachable(state: State, event: e.NodeUnreachable) -> Instructions:
    """Mark a node as unreachable: no job starts there, running ones keep their allocations."""
    if event.node not in state.record.remotes:
        return []  # removed a moment ago
    before = state.record.unreachable.get(event.node)
    since, boot = (before.since, before.boot_time) if before else (event.at, event.boot)
    state.record.unreachable[event.node] = Unreachable(
        since, event.boot if boot is None else boot, event.why
    )
    _update_node(state)
    return []


def on_node_cordoned(state: State, event: e.NodeCordoned) -> Instructions:
    """Cordon a node, or uncordon it."""
    if event.node not in state.record.remotes:
        return []
    state.record.cordoned.pop(event.node, None)
    if event.why is not None:
        state.record.cordoned[event.node] = event.why
    _update_node(state)
    return []


def on_node_load_measured(state: State, event: e.NodeLoadMeasured) -> Instructions:
    """Set the cores and memory that foreign processes use on a node."""
    state.record.foreign_load.pop(event.node, None)
    if event.node in state.record.nodes and (event.cpus or event.memory):
        state.record.foreign_load[event.node] = (event.cpus, event.memory)
    _update_node(state)
    return []


def on_attempt_abandoned(state: State, job: Job, event: e.AttemptAbandoned) -> Instructions:
    """Give up an attempt on an unreachable node, although it may still run there."""
    if job.placement is None:
        return []
    abandoned = state.record.abandoned_attempts.get(event.node, ())
    attempt = (event.job, event.attempt)
    if attempt not in abandoned:
        state.record.abandoned_attempts[event.node] = (*abandoned, attempt)
    _update_node(state)
    remote = state.record.remotes.get(event.node)
    if remote is None or not remote.shared:
        learning.discard_unsaved(job)
    if job.placement.other_parts:
        parts = [part.node for part in job.placement.parts]
        return end_part(state, job, PartEnd(parts.index(event.node), away=True), event.at)
    reason = f"lost: {event.node} was unreachable"
    outcome = forced_outcome(job) or AttemptOutcome(JobState.NODE_FAIL, reason, again=True)
    return conclude(state, job, outcome, event.at)


def _update_node(state: State) -> None:
    apply_node_marks(state)
    state.pending.request_planning()
    state.changes.record()
