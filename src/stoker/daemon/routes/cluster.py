"""Routes of GPUs, nodes, queues and policies."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from msgspec import convert
from starlette.requests import Request

from stoker.core.state.state import State
from stoker.daemon.context import reply_only
from stoker.daemon.gpus.history import MAX_AGE_SECONDS
from stoker.daemon.handlers import limits, nodes, policies, queries, queues, reservations, shares
from stoker.daemon.http.codec import parse_number
from stoker.daemon.nodes.registry import MAX_REFRESH_SECONDS
from stoker.daemon.routes.bridge import RouteContext, signal_future
from stoker.engine import CommandResult, Instant
from stoker.schema import requests
from stoker.schema.gpu import GpuHistoryReply

DEFAULT_HISTORY_MINUTES = 60
MAX_PROBE_SECONDS = 1.0
"""How long a reply about GPUs waits for a fresh reading."""


async def list_gpus(api: RouteContext, request: Request) -> Any:
    """Return every GPU with its use, after a fresh reading if the driver answers in time."""
    fresh, on_fresh = signal_future()
    daemon = api.daemon

    def refresh(state: State, now: Instant) -> CommandResult:
        daemon.gpus.keep_fresh(on_fresh)
        nodes.refresh_reachable(daemon.registry)
        return reply_only(None)

    def notes() -> list[str]:
        return nodes.gpu_notes(daemon.registry, daemon.gpus.note)

    await api.ask(refresh)
    await asyncio.wait([fresh], timeout=MAX_PROBE_SECONDS)
    return await api.ask(partial(queries.list_gpus, api.gpu_readings, notes))


async def list_alarms(api: RouteContext, request: Request) -> Any:
    """Return what is probably wrong with running jobs and GPUs."""
    return await api.ask(partial(queries.list_alarms, api.context))


async def gpu_history(api: RouteContext, request: Request) -> Any:
    """Return the use of GPUs over time."""
    query = request.query_params
    minutes = parse_number(query.get("minutes"), "minutes") or DEFAULT_HISTORY_MINUTES
    step = parse_number(query.get("step"), "step")
    seconds = min(minutes * 60, MAX_AGE_SECONDS)
    gpus = frozenset(query.getlist("gpu"))

    def handle(state: State, now: Instant) -> CommandResult:
        history = api.daemon.gpus.recorder.history
        return reply_only(history.series(now.wall, seconds, step, gpus))

    first, width, series = await api.ask(handle)
    return convert({"t": first, "step": width, "gpus": series}, GpuHistoryReply)


async def set_thresholds(api: RouteContext, request: Request, body: requests.Thresholds) -> Any:
    """Change when a GPU counts as used by foreign processes, until the daemon stops."""

    def handle(state: State, now: Instant) -> CommandResult:
        registry = api.daemon.registry
        registry.refresh(list(registry.nodes))
        return reply_only(api.daemon.gpus.set_thresholds(body))

    return await api.ask(handle)


async def list_nodes(api: RouteContext, request: Request) -> Any:
    """Return every node."""
    return await api.ask(partial(nodes.list_nodes, api.daemon.registry, api.daemon.since))


async def refresh_nodes(api: RouteContext, request: Request, body: requests.RefreshNodes) -> Any:
    """Measure nodes, then return all; nodes that take too long are shown as they were."""
    refreshed, on_refreshed = signal_future()
    await api.ask(partial(nodes.refresh, api.daemon.registry, body.names, on_refreshed))
    await asyncio.wait([refreshed], timeout=MAX_REFRESH_SECONDS)
    return await list_nodes(api, request)


async def check_node(api: RouteContext, request: Request, body: requests.CheckNode) -> Any:
    """Check a cluster: connection, rights, GPUs, volumes."""
    run = await api.ask(partial(nodes.check, api.daemon.registry, body.name))
    return await asyncio.to_thread(run)


async def list_queues(api: RouteContext, request: Request) -> Any:
    """Return the named queues."""
    return await api.ask(queries.list_queues)


async def delete_queue(api: RouteContext, request: Request) -> Any:
    """Delete a named queue."""
    return await api.ask(partial(queues.delete_queue, request.path_params["name"]))


async def list_limits(api: RouteContext, request: Request) -> Any:
    """Return the limits of users, groups and queues, and what is used of them."""
    return await api.ask(partial(limits.show, api.context))


async def list_reservations(api: RouteContext, request: Request) -> Any:
    """Return the advance reservations."""
    return await api.ask(reservations.show)


async def cancel_reservation(api: RouteContext, request: Request) -> Any:
    """Cancel an advance reservation."""
    name = request.path_params["name"]
    return await api.ask(partial(reservations.cancel, api.context, name))


async def list_shares(api: RouteContext, request: Request) -> Any:
    """Return the users of fair share, their weights, usage and penalties."""
    return await api.ask(shares.show)


async def list_policies(api: RouteContext, request: Request) -> Any:
    """Return the policy of each queue, and all policies."""
    return await api.ask(policies.show)
