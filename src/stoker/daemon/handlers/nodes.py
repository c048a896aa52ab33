"""Machines: which belong to us, how they are, and what is free on them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from stoker.core import events as e
from stoker.core.job import Job
from stoker.core.state import State
from stoker.core.units import BadValue
from stoker.daemon import settings
from stoker.daemon.context import CommandHandler, RequestContext, reply_only
from stoker.daemon.nodes.registry import ExecutorRegistry, RemoteNode
from stoker.daemon.settings import ConfiguredNode, check_name
from stoker.daemon.views.job import iso, resources_view
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.executors.ssh.address import Address, parse_address
from stoker.schema import requests as r

PATIENCE = 15
"""Seconds that a fresh look at machines may take."""


def add(desk: RequestContext, body: r.AddNode) -> CommandHandler:
    """One more machine over SSH, or another way to one that we have."""
    configured = _in_file(body.name)

    def decide(state: State, now: Instant) -> CommandResult:
        if body.name == desk.node:
            raise CommandRejected(f"'{body.name}' is this node; choose another name.", "usage")
        try:
            check_name(body.name)
            address = parse_address(body.address, body.key)
        except BadValue as error:
            raise CommandRejected(str(error), "usage") from None
        if body.key is not None and not os.path.isfile(os.path.expanduser(body.key)):
            raise CommandRejected(f"There is no key at {body.key}.", "not_found")
        fact = e.NodeAdded(
            at=now.wall, name=body.name, address=body.address, key=body.key, shared=body.shared
        )
        before = state.rest.remotes.get(body.name)
        known = before is not None and _same(before, fact)
        twin = _at_same_place(state, body.name, address)
        if twin is not None and not known:
            raise CommandRejected(
                f"{address.url} is already node '{twin}'; with two names its GPUs would be"
                " allocated twice.",
                "failed",
            )
        running = _running(state, body.name)
        if before is not None and before.address != body.address and running and not body.force:
            raise CommandRejected(
                f"{_jobs(running)} on {body.name}, which is {before.address}; if that is the same"
                " machine at another address, say --force, otherwise choose another name.",
                "failed",
            )
        reply = {
            "name": body.name,
            "address": body.address,
            "new": before is None,
            "changed": not known,
            "configured": configured,
        }
        return CommandResult(events=[] if known else [fact], reply=lambda _: reply)

    return decide


def _at_same_place(state: State, name: str, address: Address) -> str | None:
    """Another name of the same account there, as far as the address tells."""
    for other, added in state.rest.remotes.items():
        known = parse_address(added.address)
        if other == name or (known.host, known.port or 22) != (address.host, address.port or 22):
            continue
        # Without a user, ssh's configuration names one: it may be the same.
        if not known.user or not address.user or known.user == address.user:
            return other
    return None


def _same(one: e.NodeAdded, other: e.NodeAdded) -> bool:
    return (one.address, one.key, one.shared) == (other.address, other.key, other.shared)


def _running(state: State, name: str) -> list[Job]:
    return [
        job
        for job in state.running.values()
        if job.placement is not None and job.placement.on(name) is not None
    ]


def _jobs(running: list[Job]) -> str:
    """`Job 4 still runs`, `Jobs 4, 5 and 17 others still run`."""
    listed = ", ".join(job.label for job in running[:5])
    if len(running) == 1:
        return f"Job {listed} still runs"
    more = f" and {len(running) - 5} others" if len(running) > 5 else ""
    return f"Jobs {listed}{more} still run"


def from_settings(
    state: State, wanted: Mapping[str, ConfiguredNode], here: str, at: float
) -> tuple[list[e.Event], list[str]]:
    """What the configuration says now, compared with what it said before; and warnings."""
    events: list[e.Event] = []
    warnings: list[str] = []
    # A home directory on several machines has one configuration, which names this one too.
    named = {name: node for name, node in wanted.items() if name != here}
    for name, each in named.items():
        fact = e.NodeAdded(
            at=at, name=name, address=each.address, key=each.key, shared=each.shared,
            configured=True,
        )  # fmt: skip
        before = state.rest.remotes.get(name)
        if before is not None and before.configured and _same(before, fact):
            continue
        running = _running(state, name)
        if before is not None and before.address != fact.address and running:
            warnings.append(
                f"{_jobs(running)} on {name} at {before.address}, which the configuration says is"
                f" at {fact.address}; the change applies at the first start without jobs there"
            )
            continue
        events.append(fact)
    for name, before in state.rest.remotes.items():
        if not before.configured or name in named:
            continue
        running = _running(state, name)
        if not running:
            events.append(e.NodeRemoved(at=at, name=name))
            continue
        warnings.append(
            f"{_jobs(running)} on {name}, which is no longer in the configuration; it is removed"
            " at the first start without jobs there"
        )
    return events, warnings


def remove(desk: RequestContext, body: r.RemoveNode) -> CommandHandler:
    """A machine over SSH is ours no longer; with `force`, what runs there is given up."""
    configured = _in_file(body.name)

    def decide(state: State, now: Instant) -> CommandResult:
        if body.name == desk.node:
            raise CommandRejected(f"'{body.name}' is this node; it cannot be removed.", "usage")
        if body.name not in state.rest.remotes:
            raise CommandRejected(f"There is no node '{body.name}'; see stoker nodes.", "not_found")
        running = _running(state, body.name)
        if running and not body.force:
            raise CommandRejected(
                f"{_jobs(running)} on {body.name}; wait for them to end, cancel them, or abandon"
                " them with --force.",
                "failed",
            )
        why = f"{body.name} was removed"
        events: list[e.Event] = []
        for job in running:
            assert job.placement is not None
            rank = [part.node for part in job.placement.parts].index(body.name)
            part = rank if job.placement.more else None
            lost = e.AttemptLost(
                at=now.wall, job=job.id, attempt=job.attempt, why=why, part=part,
                with_files=not state.rest.remotes[body.name].shared,
            )  # fmt: skip
            events.append(lost)
        events.append(e.NodeRemoved(at=now.wall, name=body.name))
        given_up = [job.id for job in running]
        reply = {"name": body.name, "lost": given_up, "configured": configured}
        return CommandResult(events=events, reply=lambda _: reply)

    return decide


def _in_file(name: str) -> bool:
    """Whether the configuration, as it is now, names this machine."""
    try:
        return name in settings.load().nodes
    except BadValue:
        return False  # whoever starts the next daemon will hear of it


def look(fleet: ExecutorRegistry, names: list[str]) -> CommandHandler:
    """Ask machines how they are; which ones, and since when the answer counts."""

    def decide(state: State, now: Instant) -> CommandResult:
        for name in names:
            if name not in state.rest.remotes and name not in state.cluster.nodes:
                raise CommandRejected(f"There is no node '{name}'; see stoker nodes.", "not_found")
        wanted = [name for name in fleet.machines if not names or name in names]
        fleet.look_now(wanted)
        return reply_only((time.monotonic(), wanted))

    return decide


def looked(fleet: ExecutorRegistry, asked: tuple[float, list[str]]) -> CommandHandler:
    """Whether all of them have answered since, or are known not to."""
    since, names = asked

    def decide(state: State, now: Instant) -> CommandResult:
        return reply_only(all(fleet.answered(name, since) for name in names))

    return decide


def glance(fleet: ExecutorRegistry) -> CommandHandler:
    """Have those that answer looked at; nobody waits for it."""

    def decide(state: State, now: Instant) -> CommandResult:
        fleet.look_now([name for name, machine in fleet.machines.items() if machine.told])
        return reply_only(None)

    return decide


def figures(fleet: ExecutorRegistry, name: str) -> dict[str, dict[str, Any]]:
    """The figures of a machine's GPUs, by UUID; old ones are none."""
    machine = fleet.machines.get(name)
    return fleet.figures(name) if machine is not None and machine.told else {}


def gpu_notes(fleet: ExecutorRegistry, here: str | None) -> list[str]:
    """What GPU drivers complain about, here and elsewhere."""
    there = [
        f"{name}: {machine.error}"
        for name, machine in fleet.machines.items()
        if machine.error is not None
    ]
    return [here, *there] if here else there


def roll(fleet: ExecutorRegistry, state: State) -> dict[str, list[str]]:
    """Return the names of the nodes over SSH, by whether they answer."""
    by_state: dict[str, list[str]] = {"machines": [], "connecting": [], "unreachable": []}
    for name in state.rest.remotes:
        how = _state(fleet.machines.get(name), name in state.rest.away, drained=False)
        by_state["machines" if how == "up" else how].append(name)
    return by_state


def listed(fleet: ExecutorRegistry, since: float) -> CommandHandler:
    """Every machine and what is left of it."""

    def decide(state: State, now: Instant) -> CommandResult:
        remotes = state.rest.remotes  # in the order in which they were added
        local = [
            name
            for name, node in state.cluster.nodes.items()
            if name not in remotes and not node.removed
        ]
        names = [*local, *remotes]
        return reply_only({"nodes": [_view(name, state, fleet, since) for name in names]})

    return decide


def _view(name: str, state: State, fleet: ExecutorRegistry, since: float) -> dict[str, Any]:
    node, added = state.cluster.nodes.get(name), state.rest.remotes.get(name)
    away, machine = state.rest.away.get(name), fleet.machines.get(name)
    devices = [device for device in node.devices() if not device.gone] if node else []
    drained = bool(devices) and all(device.drained is not None for device in devices)
    begun = away.since if away else machine.since if machine else since
    return {
        "name": name,
        "state": _state(machine, away is not None, drained),
        "why": away.why if away else None,
        "notes": _notes(state, name, machine) if added else [],
        "address": added.address if added else None,
        "key": added.key if added else None,
        "shared": added.shared if added else True,
        "configured": added.configured if added else False,
        "resources": resources_view(node) if node is not None else {},
        "jobs": len(_running(state, name)),
        "since": iso(begun),
        "measured": _measured(machine),
    }


def _notes(state: State, name: str, machine: RemoteNode | None) -> list[str]:
    """What is not as usual about a machine over SSH."""
    notes = []
    if name in state.rest.closed:
        notes.append(f"accepts no new jobs: {state.rest.closed[name]}")
    if machine is not None and machine.error:
        notes.append(machine.error)
    if machine is not None and machine.look is not None and "bash" not in machine.look.tools:
        notes.append("no bash: command lines run in sh, without ~/.bashrc")
    strays = state.rest.strays.get(name, ())
    if strays:
        known = [(id, state.jobs.get(id)) for id, _ in strays[:5]]
        jobs = ", ".join(str(id) if job is None else job.label for id, job in known)
        notes.append(f"to be ended there because it was requeued on another node: job {jobs}")
    return notes


def _state(machine: RemoteNode | None, away: bool, drained: bool) -> str:
    if machine is not None and away:
        return "unreachable" if machine.why else "connecting"
    return "drained" if drained else "up"


def _measured(machine: RemoteNode | None) -> dict[str, Any] | None:
    """The last look at a machine over SSH."""
    look = machine.look if machine is not None else None
    if look is None:
        return None
    return {
        "cores": look.cores,
        "load": look.load1,
        "free_cores": machine.free_cores if machine is not None else None,
        "memory": look.memory_total,
        "memory_available": look.memory_available,
        "disk_free": look.disk_free,
        "tools": sorted(look.tools),
        "gpus": [
            {"index": facts.index, "uuid": facts.uuid, "model": facts.model,
             "memory": facts.memory, "memory_used": use.memory_used,
             "utilization": use.utilization}
            for facts, use in zip(look.reading.facts, look.reading.use, strict=False)
        ],
    }  # fmt: skip
