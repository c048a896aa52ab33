"""Handlers of nodes, devices, foreign use, queues and policies."""

from __future__ import annotations

from typing import TypeVar

from stoker.core import events as e
from stoker.core.events import instructions as do
from stoker.core.handlers import learning
from stoker.core.handlers.attempts import end_part
from stoker.core.model.job import Job, PartEnd
from stoker.core.model.limits import Limits, Share, SubjectLimits
from stoker.core.model.resources import GPU, DeviceFacts, NodeFacts
from stoker.core.state import eligibility, reranking
from stoker.core.state.node_updates import apply_node_marks, held_on, rejoin, rejoin_first_node
from stoker.core.state.record import NOT_REACHED_YET, Unreachable
from stoker.core.state.state import State

_T = TypeVar("_T")


def _put(table: dict[str, _T], key: str, value: _T | None) -> None:
    """Set an entry of a table as its last one; without a value, remove it."""
    table.pop(key, None)
    if value is not None:
        table[key] = value


def on_daemon_started(state: State, event: e.DaemonStarted) -> None:
    """Note a new daemon, perhaps after a reboot; foreign use is measured again.

    Remote nodes are unreachable until the daemon reaches them; their jobs continue.
    """
    record = state.record
    rebooted = record.boot not in ("", event.boot)
    record.term, record.boot = event.term, event.boot
    record.cordoned, record.foreign_use = {}, {}
    for name in record.remotes:
        before = record.unreachable.get(name)
        if before is None:
            record.unreachable[name] = Unreachable(event.at, event.clock, NOT_REACHED_YET)
        elif rebooted and before.boot_time is not None:
            boot_time = _on_new_clock(event, before.since)
            record.unreachable[name] = Unreachable(before.since, boot_time, before.reason)
    for job in state.running.values() if rebooted else ():
        if job.placement is not None and job.placement.node in record.remotes:
            _keep_time(job, event)
            state.changes.job(job.id)
    for name in state.cluster.nodes:
        apply_node_marks(state, name)
    if not state.memory.has_current_ranks:
        reranking.rank_restored(state, event.at)


def _on_new_clock(event: e.DaemonStarted, at: float) -> float:
    """Return a time before a reboot on the new boot clock; the wall clock may have been set."""
    return event.clock - max(event.at - at, 0.0)


def _keep_time(job: Job, event: e.DaemonStarted) -> None:
    """Convert the times of a running job to the boot clock after a reboot."""
    before, started_at = job.started_boot, job.started_at
    job.started_boot = event.clock if started_at is None else _on_new_clock(event, started_at)
    if job.paused_boot is not None and before is not None:
        job.paused_boot += job.started_boot - before
    if before is not None:
        job.progress = job.progress.with_stop_postponed(job.started_boot - before)


def on_node_joined(state: State, event: e.NodeJoined) -> None:
    """Set the devices of a node; running attempts keep their allocations."""
    facts = event.facts
    state.pending.request_planning()
    before, models = state.record.nodes.get(facts.name), list(state.cluster.gpu_models)
    state.record.nodes[facts.name] = facts
    rejoin(state, facts)
    if facts.pilot != (before.pilot if before is not None else None):
        eligibility.requeue_all(state, None, event.at)
    if state.record.missing_devices or before is None or _gpus(before) != _gpus(facts):
        eligibility.requeue_for_nodes(state, event.at, models)


def _gpus(facts: NodeFacts) -> tuple[DeviceFacts, ...]:
    return facts.types.get(GPU, ())


def on_drain_changed(state: State, event: e.DevicesDrained | e.DevicesUndrained) -> None:
    """Drain devices (running jobs continue, no job starts there), or undrain them."""
    reason = event.reason if isinstance(event, e.DevicesDrained) else None
    for node, type, name in event.devices:
        _put(state.record.drained, f"{node}/{type}:{name}", reason)
        _update_node(state, node)  # what was nominated there is nominated elsewhere


def on_foreign_use_changed(state: State, event: e.ForeignUseChanged) -> None:
    """Record that a foreign process started or stopped using a GPU."""
    node = state.cluster.nodes.get(event.node)
    is_known = node is not None and (GPU, event.device) in node.by_name
    use = (event.foreign_user or "", event.memory)
    is_used = is_known and (event.foreign_user is not None or event.memory)
    _put(state.record.foreign_use, f"{event.node}/gpu:{event.device}", use if is_used else None)
    _update_node(state, event.node)


def on_queue_changed(state: State, event: e.QueueDefined | e.QueueDeleted) -> None:
    """Define or change a queue, or delete its limits; its jobs stay."""
    before, after = state.record.queues.get(event.name), None
    if isinstance(event, e.QueueDefined):
        state.record.queues[event.name] = after = event
    else:
        state.record.queues.pop(event.name, None)
    state.policies.invalidate()
    state.update_queue_devices()
    state.pending.request_planning()
    if any(queue is not None and queue.resources for queue in (before, after)):
        rejoin_first_node(state)
    eligibility.requeue_all(state, None if state.record.missing_devices else event.name, event.at)


def on_limits_set(state: State, event: e.LimitsSet) -> None:
    """Set or remove the limits of a subject; running jobs continue."""
    record, key = state.record, event.subject.key
    is_set = event.limits != Limits()
    _put(record.limits, key, SubjectLimits(event.subject, event.limits) if is_set else None)
    record.gpu_time.update((key, dict(hours)) for key, hours in event.gpu_time.items())
    _recount_limits(state, event.at)


def on_groups_recorded(state: State, event: e.GroupsRecorded) -> None:
    """Set the unix groups of a user."""
    state.record.groups[f"user:{event.uid}"] = event.groups
    if event.user:
        state.record.uids[event.user] = event.uid
    if state.record.limits:
        _recount_limits(state, event.at)


def _recount_limits(state: State, at: float) -> None:
    state.limits.recount(state.running.values())
    state.limits.refresh(at)
    state.pending.request_planning()
    eligibility.requeue_all(state, None, at)


def on_reservation_made(state: State, event: e.ReservationMade) -> None:
    """Keep devices for the jobs of a reservation; running jobs continue."""
    state.record.reservations[event.reservation.name] = event.reservation
    _change_reservations(state, event.at)


def on_reservation_ended(state: State, event: e.ReservationEnded) -> None:
    """Give the devices of a reservation to all jobs again."""
    if state.record.reservations.pop(event.name, None) is not None:
        _change_reservations(state, event.at)


def _change_reservations(state: State, at: float) -> None:
    state.update_reservations()
    state.pending.request_planning()
    eligibility.requeue_all(state, None, at)  # jobs of several users are no longer one class


def on_share_set(state: State, event: e.ShareSet) -> None:
    """Set or remove a weight in fair share; the next cycle computes the penalties."""
    share = Share(event.subject, event.weight) if event.weight is not None else None
    _put(state.record.shares, event.subject.key, share)
    state.pending.request_planning()


def on_policy_chosen(state: State, event: e.PolicyChosen) -> None:
    """Set the policy of a queue; running jobs continue."""
    chosen = (event.name, dict(event.parameters)) if event.name else None
    _put(state.record.policies, event.queue, chosen)
    state.record.policies_since[event.queue] = event.at
    state.policies.invalidate()
    state.pending.request_planning()
    eligibility.apply_policy_change(state, None if event.queue == "*" else event.queue, event.at)


def on_node_added(state: State, event: e.NodeAdded) -> None:
    """Add a remote node or change its address; its devices are known once it is reached."""
    record, name = state.record, event.name
    before = record.remotes.get(name)
    record.remotes[name] = event
    if before is None or before.address != event.address:
        record.cordoned.pop(name, None)
        record.unreachable.setdefault(name, Unreachable(event.at, None, NOT_REACHED_YET))
    _update_node(state, name)


def on_node_removed(state: State, event: e.NodeRemoved) -> None:
    """Remove a node, on which nothing runs but parts of gangs that were given up."""
    record, name, models = state.record, event.name, list(state.cluster.gpu_models)
    is_first = name == next(iter(record.nodes), None)
    for marks in (record.drained, record.foreign_use):
        for key in [key for key in marks if key.startswith(f"{name}/")]:
            del marks[key]
    _clear_missing(state, name)
    for table in (
        record.remotes, record.nodes, record.unreachable, record.cordoned, record.foreign_load,
        record.abandoned_attempts,
    ):  # fmt: skip
        table.pop(name, None)
    state.cluster.remove_node(name, held_on(state.running.values(), name))
    if is_first:
        rejoin_first_node(state)
    eligibility.requeue_for_nodes(state, event.at, models)
    _update_node(state, name)


def _clear_missing(state: State, node: str) -> bool:
    """Forget which images a node could not run; return whether there were any."""
    missing = state.record.missing_devices
    images = [image for image, nodes in missing.items() if nodes.pop(node, None) is not None]
    for image in images:
        if not missing[image]:
            del missing[image]
    return bool(images)


def on_node_reached(state: State, event: e.NodeReached) -> None:
    """Mark a node as reachable."""
    state.record.unreachable.pop(event.node, None)
    if _clear_missing(state, event.node):
        eligibility.requeue_all(state, None, event.at)
    abandoned = state.record.abandoned_attempts
    remaining = tuple(key for key in abandoned.get(event.node, ()) if key not in event.ended)
    _put(abandoned, event.node, remaining or None)
    _update_node(state, event.node)


def on_node_unreachable(state: State, event: e.NodeUnreachable) -> None:
    """Mark a node as unreachable: no job starts there, running ones keep their allocations."""
    if event.node not in state.record.remotes:
        return  # removed a moment ago
    before = state.record.unreachable.get(event.node)
    since, boot = (before.since, before.boot_time) if before else (event.at, event.boot)
    boot = event.boot if boot is None else boot
    state.record.unreachable[event.node] = Unreachable(since, boot, event.why)
    _update_node(state, event.node)


def on_node_cordoned(state: State, event: e.NodeCordoned) -> None:
    """Cordon a node, or uncordon it."""
    if event.node in state.record.remotes:
        _put(state.record.cordoned, event.node, event.why)
        _update_node(state, event.node)


def on_node_load_measured(state: State, event: e.NodeLoadMeasured) -> None:
    """Set the cores and memory that foreign processes use on a node."""
    is_used = event.node in state.record.nodes and (event.cpus or event.memory)
    use = (event.cpus, event.memory) if is_used else None
    _put(state.record.foreign_load, event.node, use)
    _update_node(state, event.node)


def on_attempt_abandoned(state: State, job: Job, event: e.AttemptAbandoned) -> do.Instructions:
    """Give up an attempt on an unreachable node, although it may still run there."""
    if job.placement is None:
        return []
    abandoned = state.record.abandoned_attempts.get(event.node, ())
    attempt = (event.job, event.attempt)
    if attempt not in abandoned:
        state.record.abandoned_attempts[event.node] = (*abandoned, attempt)
    state.changes.record()
    _update_node(state, event.node)
    remote = state.record.remotes.get(event.node)
    if remote is None or not remote.shared:
        learning.discard_unsaved(job)
    nodes = [part.node for part in job.placement.parts]
    end = PartEnd(nodes.index(event.node), away=True)
    return end_part(state, job, end, event.at, is_whole=set(nodes) == {event.node})


def _update_node(state: State, name: str) -> None:
    apply_node_marks(state, name)
    state.pending.request_planning()
