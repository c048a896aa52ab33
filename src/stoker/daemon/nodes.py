"""Machines: which belong to us, how they are, and what is free on them."""

from __future__ import annotations

import os
import time
from typing import Any

from stoker.core import events as e
from stoker.core.request import GPU
from stoker.core.state import State
from stoker.core.units import BadValue
from stoker.daemon import requests as r
from stoker.daemon.desk import Decide, Desk, answered
from stoker.daemon.fleet import Fleet, Machine
from stoker.daemon.views import iso, resources_view
from stoker.engine import Decision, Moment, Refusal
from stoker.executors.ssh.address import parse_address

PATIENCE = 15
"""Seconds that a fresh look at machines may take."""


def add(desk: Desk, body: r.AddNode) -> Decide:
    """One more machine over SSH, or another way to one that we have."""

    def decide(state: State, now: Moment) -> Decision:
        if body.name == desk.node:
            raise Refusal(f"'{body.name}' is this machine; choose another name.", "usage")
        try:
            parse_address(body.address, body.key)
        except BadValue as error:
            raise Refusal(str(error), "usage") from None
        if body.key is not None and not os.path.isfile(os.path.expanduser(body.key)):
            raise Refusal(f"There is no key at {body.key}.", "not_found")
        fact = e.NodeAdded(
            at=now.at, name=body.name, address=body.address, key=body.key, shared=body.shared
        )
        before = state.rest.remotes.get(body.name)
        known = before is not None and _same(before, fact)
        reply = {"name": body.name, "address": body.address, "new": not known}
        return Decision(events=[] if known else [fact], reply=lambda _: reply)

    return decide


def _same(one: e.NodeAdded, other: e.NodeAdded) -> bool:
    return (one.address, one.key, one.shared) == (other.address, other.key, other.shared)


def remove(desk: Desk, body: r.RemoveNode) -> Decide:
    """A machine over SSH is ours no longer; with `force`, what runs there is given up."""

    def decide(state: State, now: Moment) -> Decision:
        if body.name == desk.node:
            raise Refusal(f"'{body.name}' is this machine; it cannot be removed.", "usage")
        if body.name not in state.rest.remotes:
            raise Refusal(f"There is no machine '{body.name}'; see stoker nodes.", "not_found")
        running = [
            job
            for job in state.running.values()
            if job.placement is not None and job.placement.on(body.name) is not None
        ]
        if running and not body.force:
            listed = ", ".join(job.label for job in running[:5])
            raise Refusal(
                f"Job {listed} still runs on {body.name}; wait, cancel it, or give it up with"
                " --force.",
                "failed",
            )
        why = f"{body.name} was removed"
        events: list[e.Event] = []
        for job in running:
            assert job.placement is not None
            rank = [part.node for part in job.placement.parts].index(body.name)
            part = rank if job.placement.more else None
            lost = e.AttemptLost(at=now.at, job=job.id, attempt=job.attempt, why=why, part=part)
            events.append(lost)
        events.append(e.NodeRemoved(at=now.at, name=body.name))
        reply = {"name": body.name, "lost": [job.id for job in running]}
        return Decision(events=events, reply=lambda _: reply)

    return decide


def look(fleet: Fleet, names: list[str]) -> Decide:
    """Ask machines how they are; which ones, and since when the answer counts."""

    def decide(state: State, now: Moment) -> Decision:
        for name in names:
            if name not in state.rest.remotes and name not in state.cluster.nodes:
                raise Refusal(f"There is no machine '{name}'; see stoker nodes.", "not_found")
        wanted = [name for name in fleet.machines if not names or name in names]
        fleet.look_now(wanted)
        return answered((time.monotonic(), wanted))

    return decide


def looked(fleet: Fleet, asked: tuple[float, list[str]]) -> Decide:
    """Whether all of them have answered since, or are known not to."""
    since, names = asked

    def decide(state: State, now: Moment) -> Decision:
        return answered(all(fleet.answered(name, since) for name in names))

    return decide


def listed(fleet: Fleet, since: float) -> Decide:
    """Every machine and what is left of it."""

    def decide(state: State, now: Moment) -> Decision:
        names = [
            *state.cluster.nodes,
            *(n for n in state.rest.remotes if n not in state.cluster.nodes),
        ]
        return answered({"nodes": [_view(name, state, fleet, since) for name in names]})

    return decide


def _view(name: str, state: State, fleet: Fleet, since: float) -> dict[str, Any]:
    node, added = state.cluster.nodes.get(name), state.rest.remotes.get(name)
    away, machine = state.rest.away.get(name), fleet.machines.get(name)
    gpus = node.types.get(GPU, []) if node is not None else []
    drained = bool(gpus) and all(device.drained is not None for device in gpus)
    begun = away.since if away else machine.since if machine else since
    return {
        "name": name,
        "state": _state(machine, away is not None, drained),
        "why": away.why if away else machine.error if machine else None,
        "address": added.address if added else None,
        "shared": added.shared if added else True,
        "resources": resources_view(node) if node is not None else {},
        "jobs": sum(
            job.placement is not None and job.placement.on(name) is not None
            for job in state.running.values()
        ),
        "since": iso(begun),
        "measured": _measured(machine),
    }


def _state(machine: Machine | None, away: bool, drained: bool) -> str:
    if machine is not None and away:
        return "unreachable" if machine.why else "connecting"
    return "drained" if drained else "up"


def _measured(machine: Machine | None) -> dict[str, Any] | None:
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
