"""Nodes of config.toml, compared with the nodes of the journal."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stoker.core import events as e
from stoker.core.model.job import Job
from stoker.core.model.units import BadValue
from stoker.core.state.state import State
from stoker.daemon import settings
from stoker.daemon.settings import ConfiguredNode


def configured_names() -> Collection[str]:
    """Return the names of the nodes in config.toml as it is now; none if it is invalid."""
    try:
        return settings.load().nodes
    except BadValue:
        return ()  # the next start of a daemon reports it


def configured_node_events(
    state: State, wanted: Mapping[str, ConfiguredNode], local: str, at: float
) -> tuple[list[e.Event], list[str]]:
    """Return the events that bring the nodes in line with config.toml, and warnings."""
    events: list[e.Event] = []
    warnings: list[str] = []
    # A home directory shared by several hosts has one config.toml, which names this host too.
    remote = {name: node for name, node in wanted.items() if name != local}
    for name, node in remote.items():
        added = e.NodeAdded(
            at=at, name=name, address=node.address, key=node.key, shared=node.shared,
            configured=True,
        )  # fmt: skip
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
        events.append(added)
    for name, before in state.record.remotes.items():
        if not before.configured or name in remote:
            continue
        running = jobs_on_node(state, name)
        if not running:
            events.append(e.NodeRemoved(at=at, name=name))
            continue
        warnings.append(
            f"{still_running(running)} on {name}, which is no longer in the configuration; it is"
            " removed at the first start without jobs there"
        )
    return events, warnings


def is_same_node(before: e.NodeAdded, after: e.NodeAdded) -> bool:
    """Return True if both describe the node with the same address, key and file system."""
    return (before.address, before.key, before.shared) == (after.address, after.key, after.shared)


def jobs_on_node(state: State, name: str) -> list[Job]:
    """Return the jobs with a part on a node."""
    return [
        job
        for job in state.running.values()
        if job.placement is not None and job.placement.on(name) is not None
    ]


def still_running(jobs: list[Job]) -> str:
    """Return `Job 4 still runs`, or `Jobs 4, 5 and 17 others still run`."""
    listed = ", ".join(job.label for job in jobs[:5])
    if len(jobs) == 1:
        return f"Job {listed} still runs"
    more = f" and {len(jobs) - 5} others" if len(jobs) > 5 else ""
    return f"Jobs {listed}{more} still run"
