"""Nodes of config.toml, compared with the nodes of the journal."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stoker.core import events as e
from stoker.core.model.job import Job
from stoker.core.model.units import BadValue
from stoker.core.state.state import State
from stoker.daemon import settings
from stoker.daemon.settings import ConfiguredCluster, ConfiguredNode
from stoker.executors.clusters import KINDS, kind_of


def configured_names() -> Collection[str]:
    """Return the names of the nodes in config.toml as it is now; none if it is invalid."""
    try:
        loaded = settings.load()
        return {*loaded.nodes, *loaded.clusters}
    except BadValue:
        return ()  # the next start of a daemon reports it


def configured_node_events(
    state: State,
    wanted: Mapping[str, ConfiguredNode | ConfiguredCluster],
    local: str,
    at: float,
) -> tuple[list[e.Event], list[str]]:
    """Return the events that bring the nodes in line with config.toml, and warnings."""
    events: list[e.Event] = []
    warnings: list[str] = []
    # A home directory shared by several hosts has one config.toml, which names this host too.
    remote = {name: node for name, node in wanted.items() if name != local}
    for name, node in remote.items():
        added = _addition(name, node, at)
        before = state.record.remotes.get(name)
        if before is not None and before.configured and is_same_node(before, added):
            continue
        running = jobs_on_node(state, name)
        if before is not None and before.address != added.address and running:
            warnings.append(
                f"{still_running(running)} on {name} at {before.address}, which the configuration"
                f" says is at {added.address}; the change applies at the first start without jobs"
                " there"
            )
            continue
        if before is not None and has_pilots(before) != has_pilots(added):
            running = jobs_of_cluster(state, name)
            if running:
                warnings.append(
                    f"{still_running(running)} on {name}, which gets or loses its pilots by the"
                    " configuration; the change applies at the first start without jobs there"
                )
                continue
            events += member_removals(state, name, at)
        events.append(added)
    for name, before in state.record.remotes.items():
        if not before.configured or name in remote:
            continue
        running = jobs_of_cluster(state, name)
        if not running:
            events += [*member_removals(state, name, at), e.NodeRemoved(at=at, name=name)]
            continue
        warnings.append(
            f"{still_running(running)} on {name}, which is no longer in the configuration; it is"
            " removed at the first start without jobs there"
        )
    return events, warnings


def _addition(name: str, node: ConfiguredNode | ConfiguredCluster, at: float) -> e.NodeAdded:
    if isinstance(node, ConfiguredCluster):
        return KINDS[node.kind].addition(name, node.options, node.shared, at, configured=True)
    return e.NodeAdded(
        at=at, name=name, address=node.address, key=node.key, shared=node.shared, configured=True
    )


def is_same_node(before: e.NodeAdded, after: e.NodeAdded) -> bool:
    """Return True if both describe the node with the same address, key, files and options."""
    fields = ("executor", "address", "key", "shared", "options")
    return all(getattr(before, field) == getattr(after, field) for field in fields)


def jobs_on_node(state: State, name: str) -> list[Job]:
    """Return the jobs with a part on a node."""
    return [
        job
        for job in state.running.values()
        if job.placement is not None and job.placement.on(name) is not None
    ]


def members_of(state: State, cluster: str) -> list[str]:
    """Return the names of the nodes that belong to a cluster."""
    return [name for name, added in state.record.remotes.items() if added.cluster == cluster]


def jobs_of_cluster(state: State, name: str) -> list[Job]:
    """Return the jobs with a part on a node or on its members."""
    names = [*members_of(state, name), name]
    return [job for each in names for job in jobs_on_node(state, each)]


def member_removals(state: State, cluster: str, at: float) -> list[e.NodeRemoved]:
    """Return the events that remove the nodes that belong to a cluster."""
    return [e.NodeRemoved(at=at, name=each) for each in members_of(state, cluster)]


def has_pilots(added: e.NodeAdded) -> bool:
    """Return whether a node is a cluster with pilots."""
    return kind_of(added) is not None and "pilot" in added.options


def pilots_of(state: State, cluster: str) -> list[str]:
    """Return the names of the nodes that are allocations of a cluster."""
    remotes = state.record.remotes
    return [name for name in members_of(state, cluster) if remotes[name].is_allocation]


def lost_attempts(
    state: State, name: str, why: str, at: float, preempted: bool = False
) -> list[e.Event]:
    """Return the ends of the attempts on a node that is removed, or has ended by itself."""
    events: list[e.Event] = []
    for job in jobs_on_node(state, name):
        assert job.placement is not None
        ended = {end.part for end in job.ends}
        for rank, part in enumerate(job.placement.parts):
            if part.node != name or rank in ended:
                continue
            lost = e.AttemptLost(
                at=at, job=job.id, attempt=job.attempt, why=why,
                part=rank if job.placement.other_parts else None,
                with_files=not state.record.remotes[name].shared, preempted=preempted,
            )  # fmt: skip
            events.append(lost)
    return events


def still_running(jobs: list[Job]) -> str:
    """Return `Job 4 still runs`, or `Jobs 4, 5 and 17 others still run`."""
    listed = ", ".join(job.label for job in jobs[:5])
    if len(jobs) == 1:
        return f"Job {listed} still runs"
    more = f" and {len(jobs) - 5} others" if len(jobs) > 5 else ""
    return f"Jobs {listed}{more} still run"
