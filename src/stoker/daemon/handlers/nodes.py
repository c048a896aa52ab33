"""Add, remove, refresh and list nodes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from msgspec import convert
from msgspec.structs import asdict, replace

from stoker.core import events as e
from stoker.core.model.resources import GPU
from stoker.core.model.units import BadValue
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext, reply_only
from stoker.daemon.nodes.configured import (
    has_pilots,
    is_same_node,
    jobs_of_cluster,
    jobs_on_node,
    lost_attempts,
    member_removals,
    members_of,
    pilots_of,
    still_running,
)
from stoker.daemon.nodes.registry import ExecutorRegistry
from stoker.daemon.nodes.remote_node import RemoteNode
from stoker.daemon.settings import check_name
from stoker.daemon.views.format import iso
from stoker.daemon.views.gpu import resources_view
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.executors.clusters import KINDS, ClusterKind, kind_of, kind_of_address
from stoker.executors.kubernetes.options import parse_options
from stoker.executors.port import Allocation
from stoker.executors.ssh.address import Address, parse_address
from stoker.schema import requests as r
from stoker.schema.node import (
    AllocationView,
    CheckView,
    MeasuredGpu,
    NodeAdded,
    NodeCheck,
    NodeList,
    NodeMeasurement,
    NodeRemoved,
    NodeView,
    PilotCounts,
)


def add(context: RequestContext, body: r.AddNode, state: State, now: Instant) -> CommandResult:
    """Add a node over SSH or a cluster, or change the address of one."""
    if context.is_system:
        raise CommandRejected(
            "In this version the daemon of all users runs jobs on its own machine only: it cannot"
            " log in anywhere as their users.",
            "usage",
        )
    if body.name == context.node:
        raise CommandRejected(f"'{body.name}' is this node; choose another name.", "usage")
    check_name(body.name)
    kind = kind_of_address(body.address)
    if kind is not None:
        return _add_cluster(context, body, kind, state, now)
    if body.options:
        raise CommandRejected("An SSH node has no such options.", "usage")
    if "://" in body.address and not body.address.startswith("ssh://"):
        raise CommandRejected(
            f"'{body.address}' is no address of a node or cluster; write ssh://user@host:22,"
            " slurm:// or kubernetes://.",
            "usage",
        )
    address = parse_address(body.address, body.key)
    if body.key is not None and not os.path.isfile(os.path.expanduser(body.key)):
        raise CommandRejected(f"There is no key at {body.key}.", "not_found")
    event = e.NodeAdded(
        at=now.wall, name=body.name, address=body.address, key=body.key, shared=body.shared
    )
    before = state.record.remotes.get(body.name)
    known = before is not None and is_same_node(before, event)
    twin = _name_of_same_host(state, body.name, address)
    if twin is not None and not known:
        raise CommandRejected(
            f"{address.url} is already node '{twin}'; with two names its GPUs would be"
            " allocated twice.",
            "failed",
        )
    running = jobs_on_node(state, body.name)
    if before is not None and before.address != body.address and running and not body.force:
        raise CommandRejected(
            f"{still_running(running)} on {body.name}, which is {before.address}; if that is"
            " the same machine at another address, say --force, otherwise choose another name.",
            "failed",
        )
    reply = NodeAdded(
        name=body.name,
        address=body.address,
        new=before is None,
        changed=not known,
        configured=body.name in context.configured_nodes(),
    )
    return CommandResult(events=[] if known else [event], reply=lambda _: reply)


def _add_cluster(
    context: RequestContext, body: r.AddNode, kind: ClusterKind, state: State, now: Instant
) -> CommandResult:
    """Add a cluster, or change its options; pilots that exist are unaffected.

    Without `--pilot`, its attempts are on its own node, else on those of its members.
    """
    if body.address != kind.scheme:
        raise CommandRejected(f"Write {kind.scheme}; {kind.where}.", "usage")
    if body.key is not None:
        raise CommandRejected(f"--key is for SSH nodes: {kind.where}.", "usage")
    event = kind.addition(body.name, body.options, body.shared, now.wall)
    before = state.record.remotes.get(body.name)
    if before is not None and before.executor != kind.name:
        what = f"a {KINDS[before.executor].title} cluster" if kind_of(before) else "a node"
        raise CommandRejected(f"'{body.name}' is {what}; choose another name.", "failed")
    known = before is not None and replace(before, at=event.at, configured=False) == event
    events: list[e.Event] = [] if known else [event]
    if before is not None and has_pilots(before) != has_pilots(event):
        running = jobs_of_cluster(state, body.name)
        if running:
            them = "it" if len(running) == 1 else "them"
            what = "with" if has_pilots(event) else "without"
            raise CommandRejected(
                f"{still_running(running)} on {body.name}; wait for {them} to end or cancel"
                f" {them}, or add the cluster {what} --pilot under another name.",
                "failed",
            )
        events = [*member_removals(state, body.name, now.wall), event]
    reply = NodeAdded(
        name=body.name, address=body.address, new=before is None, changed=not known,
        configured=body.name in context.configured_nodes(),
    )  # fmt: skip
    return CommandResult(events=events, reply=lambda _: reply)


def _name_of_same_host(state: State, name: str, address: Address) -> str | None:
    """Return another node with the same account on the same host, as far as the address says."""
    for other, added in state.record.remotes.items():
        if added.executor != "ssh":
            continue
        known = parse_address(added.address)
        if other == name or (known.host, known.port or 22) != (address.host, address.port or 22):
            continue
        # Without a user in the address, the configuration of ssh may name the same one.
        if not known.user or not address.user or known.user == address.user:
            return other
    return None


def remove(
    context: RequestContext, body: r.RemoveNode, state: State, now: Instant
) -> CommandResult:
    """Remove a node over SSH; with `force`, abandon the jobs that run on it."""
    if body.name == context.node:
        raise CommandRejected(f"'{body.name}' is this node; it cannot be removed.", "usage")
    if body.name not in state.record.remotes:
        raise CommandRejected(f"There is no node '{body.name}'; see stoker nodes.", "not_found")
    names = [*members_of(state, body.name), body.name]
    running = jobs_of_cluster(state, body.name)
    if running and not body.force:
        them = "it" if len(running) == 1 else "them"
        raise CommandRejected(
            f"{still_running(running)} on {body.name}; wait for {them} to end, cancel {them}, or"
            f" abandon {them} with --force.",
            "failed",
        )
    why = f"{body.name} was removed"
    events = [event for name in names for event in lost_attempts(state, name, why, now.wall)]
    events += [e.NodeRemoved(at=now.wall, name=name) for name in names]
    reply = NodeRemoved(
        name=body.name,
        lost=[job.id for job in running],
        configured=body.name in context.configured_nodes(),
    )
    return CommandResult(events=events, reply=lambda _: reply)


def refresh(
    registry: ExecutorRegistry, names: list[str], on_refreshed: Callable[[], None],
    state: State, now: Instant,
) -> CommandResult:  # fmt: skip
    """Request fresh readings of nodes; call back when all were read or found unreachable."""
    for name in names:
        if name not in state.record.remotes and name not in state.cluster.nodes:
            raise CommandRejected(f"There is no node '{name}'; see stoker nodes.", "not_found")
    remote = [name for name in registry.nodes if not names or name in names]
    registry.refresh(remote)
    registry.when_refreshed(remote, on_refreshed)
    return reply_only(None)


def refresh_reachable(registry: ExecutorRegistry) -> None:
    """Request fresh readings of the nodes that are up, without waiting for them."""
    registry.refresh([name for name, node in registry.nodes.items() if node.is_up])


def check(registry: ExecutorRegistry, name: str, state: State, now: Instant) -> CommandResult:
    """Return a function that checks a cluster; it blocks."""
    added = state.record.remotes.get(name)
    if added is None and name not in state.cluster.nodes:
        raise CommandRejected(f"There is no node '{name}'; see stoker nodes.", "not_found")
    if added is None or added.executor != "kubernetes":
        raise CommandRejected(f"'{name}' is no Kubernetes cluster: nothing to check.", "usage")
    options, install = parse_options(added.options), registry.install
    registry.refresh([name])  # what was missing may be there now

    def run() -> NodeCheck:
        from stoker.executors.kubernetes.checks import ClusterChecker
        from stoker.executors.kubernetes.kubectl import Kubectl

        kubectl = Kubectl(options.context, options.namespace, options.kubeconfig)
        found = ClusterChecker(kubectl, options, name, install).run()
        views = [CheckView(what=c.what, state=c.state, text=c.text) for c in found.checks]
        return NodeCheck(name=name, checks=views, rbac=found.rbac)

    return reply_only(run)


def gpu_readings(registry: ExecutorRegistry, name: str) -> dict[str, dict[str, Any]]:
    """Return the readings of a node's GPUs, by UUID; none if the node is not up."""
    remote = registry.nodes.get(name)
    return registry.gpu_statistics(name) if remote is not None and remote.is_up else {}


def gpu_notes(registry: ExecutorRegistry, local: str | None) -> list[str]:
    """Return the errors of GPU drivers, first of the local node, then of remote nodes."""
    remote = [
        f"{name}: {node.error}" for name, node in registry.nodes.items() if node.error is not None
    ]
    return [local, *remote] if local else remote


def summary(registry: ExecutorRegistry, state: State) -> dict[str, list[str]]:
    """Return the names of the remote nodes by their state."""
    by_state: dict[str, list[str]] = {
        "machines": [], "connecting": [], "queued": [], "unreachable": []
    }  # fmt: skip
    for name in state.record.remotes:
        node_state = _node_state(
            registry.nodes.get(name), name in state.record.unreachable, drained=False
        )
        by_state["machines" if node_state == "up" else node_state].append(name)
    return by_state


def cluster_problems(state: State) -> list[str]:
    """Return why clusters provide no allocations."""
    return [
        f"{name} provides no allocation: {why}"
        for name, why in state.record.cordoned.items()
        if kind_of(state.record.remotes[name]) is not None
    ]


def list_nodes(
    registry: ExecutorRegistry, since: float, state: State, now: Instant
) -> CommandResult:
    """Return every node and its free resources; `since`: when the daemon started."""
    remotes = state.record.remotes
    local = [
        name
        for name, node in state.cluster.nodes.items()
        if name not in remotes and not node.removed
    ]
    names = list(local)
    for name, added in remotes.items():
        if added.cluster not in remotes:
            names += [name, *members_of(state, name)]
    return reply_only(NodeList(nodes=[_node_view(name, state, registry, since) for name in names]))


def _node_view(name: str, state: State, registry: ExecutorRegistry, since: float) -> NodeView:
    node, added = state.cluster.nodes.get(name), state.record.remotes.get(name)
    away, remote = state.record.unreachable.get(name), registry.nodes.get(name)
    devices = [device for device in node.devices() if not device.removed] if node else []
    drained = bool(devices) and all(device.drained is not None for device in devices)
    begin = away.since if away else remote.up_since if remote else since
    allocation = remote.executor.allocation if remote else None
    if node is not None and (node.on_demand or node.delegated):
        node = None  # the resources of one allocation, or pools without end
    pilots = pilots_of(state, name)
    local_notes = registry.local.notes if node is not None and node.types.get(GPU) else []
    return NodeView(
        name=name,
        kind=added.executor if added else "local",
        cluster=added.cluster if added else None,
        pilots=_pilot_counts(state, pilots) if added and has_pilots(added) else None,
        shape=_shape(added),
        allocation=_allocation_view(allocation) if allocation else None,
        state=_node_state(remote, away is not None, drained),
        why=away.reason if away else None,
        notes=_notes(state, name, remote) if added else local_notes,
        address=added.address if added else None,
        key=added.key if added else None,
        shared=added.shared if added else True,
        configured=added.configured if added else False,
        resources=resources_view(node) if node is not None else {},
        jobs=sum(len(jobs_on_node(state, each)) for each in (name, *members_of(state, name))),
        since=iso(begin),
        measured=_measured(remote),
    )


def _notes(state: State, name: str, remote: RemoteNode | None) -> list[str]:
    """Return what is unusual about a remote node."""
    notes = []
    node = state.cluster.nodes.get(name)
    if node is not None and node.delegated and (waiting := len(state.in_flight(name))):
        notes.append(f"{waiting} job{'s wait' if waiting > 1 else ' waits'} there")
    if name in state.record.cordoned:
        is_cluster = node is not None and node.on_demand
        what = "provides no allocation" if is_cluster else "accepts no new jobs"
        notes.append(f"{what}: {state.record.cordoned[name]}")
    if remote is not None and remote.error:
        notes.append(remote.error)
    if remote is not None and remote.reading is not None and "bash" not in remote.reading.tools:
        notes.append("no bash: command lines run in sh, without ~/.bashrc")
    abandoned = state.record.abandoned_attempts.get(name, ())
    if abandoned:
        jobs = [(id, state.jobs.get(id)) for id, _ in abandoned[:5]]
        labels = ", ".join(str(id) if job is None else job.label for id, job in jobs)
        notes.append(f"to be ended there because it was requeued on another node: job {labels}")
    return notes


def _shape(added: e.NodeAdded | None) -> str | None:
    """Return what a cluster provides."""
    kind = kind_of(added)
    if added is None or kind is None:
        return None
    try:
        return kind.describe(kind.parse(added.options))
    except BadValue:  # of a later version
        return ""


def _pilot_counts(state: State, pilots: list[str]) -> PilotCounts:
    queued = sum(name in state.record.unreachable for name in pilots)
    return PilotCounts(running=len(pilots) - queued, queued=queued)


def _allocation_view(allocation: Allocation) -> AllocationView:
    start, end = allocation.start, allocation.end
    return AllocationView(
        id=allocation.id,
        reason=allocation.reason if allocation.is_queued else None,
        start=iso(start) if start is not None else None,
        end=iso(end) if end is not None and not allocation.is_queued else None,
    )


def _node_state(remote: RemoteNode | None, away: bool, drained: bool) -> str:
    if remote is not None and away:
        allocation = remote.executor.allocation
        if allocation is not None and allocation.is_queued:
            return "queued"
        return "unreachable" if remote.why else "connecting"
    return "drained" if drained else "up"


def _measured(remote: RemoteNode | None) -> NodeMeasurement | None:
    """Return the last reading of a remote node."""
    if remote is None or remote.reading is None:
        return None
    reading = remote.reading
    return NodeMeasurement(
        cores=reading.cores,
        load=reading.load1,
        free_cores=remote.free_cores,
        memory=reading.memory_total,
        memory_available=reading.memory_available,
        disk_free=reading.disk_free,
        tools=sorted(reading.tools),
        gpus=[
            convert(asdict(facts) | asdict(use), MeasuredGpu)
            for facts, use in zip(reading.reading.facts, reading.reading.use, strict=False)
        ],
    )
