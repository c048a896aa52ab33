"""Routes of the daemon itself: status, stop, TCP ports, backup."""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial
from typing import Any

from starlette.requests import Request

from stoker import __version__, places, wire
from stoker.core.state.state import State
from stoker.daemon import listen_address, settings
from stoker.daemon.context import reply_only
from stoker.daemon.handlers import job_actions, nodes, policies, queries
from stoker.daemon.handlers.export import export_jobs
from stoker.daemon.http import credentials
from stoker.daemon.http.auth import tcp_auth
from stoker.daemon.http.codec import is_set
from stoker.daemon.http.permission import session_of
from stoker.daemon.nodes.local_node import build_node_facts
from stoker.daemon.routes.bridge import RouteContext
from stoker.daemon.runtime.command_queue import QueuedCommand
from stoker.daemon.views.format import iso
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.probes.gpu_reading import Reading
from stoker.schema import requests
from stoker.schema.daemon import BackupReply, DaemonStatus, ListenerClosed, StopReply
from stoker.store.port import StoreError
from stoker.store.select import check_store, select_store

logger = logging.getLogger(__name__)

NOTHING_RUNNING = "Nothing was running."
STOP_DELAY_SECONDS = 0.05
"""Between the reply to a stop request and the end, so that the reply is sent."""


async def status(api: RouteContext, request: Request) -> Any:
    """Return the status of the daemon."""
    listeners = api.listeners.views()

    def handle(state: State, now: Instant) -> CommandResult:
        daemon = api.daemon
        cluster_nodes = [node for node in state.cluster.nodes.values() if not node.on_demand]
        return reply_only(
            DaemonStatus(
                pid=os.getpid(),
                version=__version__,
                api=wire.API_VERSION,
                since=iso(daemon.since),
                socket=places.socket_path(),
                state_dir=api.context.directory,
                log=places.daemon_log(),
                mode=api.mode,
                user=api.context.submitter,
                draining=daemon.lifecycle.is_draining,
                counts=queries.counts(state),
                policy=policies.summary(state),
                gpus=sum(len(node.types.get("gpu", ())) for node in cluster_nodes),
                node=api.context.node,
                **nodes.summary(daemon.registry, state),
                store=api.context.store_name,
                listeners=listeners,
                names=list(daemon.settings.api.names),
                thresholds=daemon.gpus.thresholds.view(),
                seq=daemon.engine.seq,
                warnings=[*api.warnings(), *nodes.cluster_problems(state)],
                faults=daemon.faults.report(),
            )
        )

    return await api.ask(handle)


async def stop(api: RouteContext, request: Request, body: requests.Stop) -> Any:
    """Stop the daemon: leave running jobs, wait for them, or cancel them."""
    if body.check:
        await _check_next_start(body)
    running = await api.ask(lambda state, now: reply_only(sorted(state.running)))
    logger.info("%s requested (mode %s)", "restart" if body.check else "stop", body.mode)
    if body.mode == "cancel":
        await _cancel_all(api)
    asyncio.get_running_loop().call_later(STOP_DELAY_SECONDS, _end, api, body.mode)
    return StopReply(running=running, text=_stop_text(len(running), body.mode))


async def _check_next_start(body: requests.Stop) -> None:
    """Reject options with which the next daemon could not start."""
    config = settings.load()
    build_node_facts(Reading(), body.gpus, body.resources)
    if body.db is not None:
        await asyncio.to_thread(_check_store, body.db, config.store.url)
    if body.listen is not None:
        listen_address.split(body.listen)


def _check_store(option: str, configured: str | None) -> None:
    choice = select_store(option, configured, None, os.environ)
    try:
        check_store(choice)
    except StoreError as error:
        exit_code = getattr(error, "exit_code", wire.EXIT_FAILED)
        codes = {code: name for name, (_, code) in wire.ERRORS.items()}
        raise CommandRejected(str(error), codes.get(exit_code, "failed")) from None


async def _cancel_all(api: RouteContext) -> None:
    """Cancel all running jobs, and start none in their place."""

    def stop_starting(state: State, now: Instant) -> CommandResult:
        api.daemon.lifecycle.prepare_stop()
        # `12` would select all of array 12, also its pending tasks.
        return reply_only([f"{id}-{id}" for id in state.running])

    running = await api.ask(stop_starting)
    if running:
        await api.ask(partial(job_actions.cancel, api.context, requests.Cancel(select=running)))


def _stop_text(running: int, mode: str) -> str:
    if not running:
        return NOTHING_RUNNING
    jobs = "1 job is" if running == 1 else f"{running} jobs are"
    if mode == "cancel":
        return f"{jobs} being cancelled."
    if mode == "leave":
        return f"{jobs} left running; the next daemon recovers them."
    return f"{jobs} still running; the daemon stops when they have ended."


def _end(api: RouteContext, mode: str) -> None:
    def handle(state: State, now: Instant) -> CommandResult:
        if mode == "leave":
            api.daemon.lifecycle.stop()
        else:
            api.daemon.lifecycle.drain()
        return reply_only(None)

    api.put(QueuedCommand(handle, lambda *_: None))


async def export(api: RouteContext, request: Request) -> Any:
    """Return held jobs with their environments, as submissions to another daemon."""
    if session_of(request.scope) is not None or tcp_auth(request.scope) is not None:
        raise CommandRejected("Environments are sent to this daemon's socket only.", "permission")
    unheld = is_set(request.query_params.get("unheld"))
    return await api.ask(partial(export_jobs, api.context, unheld))


async def listen(api: RouteContext, request: Request, body: requests.Listen) -> Any:
    """Open a TCP port; only over the socket."""
    _require_socket(request)
    if body.tls:
        # A new certificate takes a moment, in which other requests are served.
        await asyncio.to_thread(credentials.load_certificate, api.listeners.state)
    address = api.listeners.add(body.address, body.tls, body.note)
    if body.keep:
        api.sessions.keep_address(address)
    return api.listeners.open[address].view()


async def unlisten(api: RouteContext, request: Request) -> Any:
    """Close a TCP port; only over the socket."""
    _require_socket(request)
    address = api.listeners.remove(request.path_params["address"])
    api.sessions.forget_address(address)
    return ListenerClosed(address=address)


def _require_socket(request: Request) -> None:
    """Reject a request that came over a TCP port."""
    if tcp_auth(request.scope) is not None:
        raise CommandRejected(
            "Ports can be opened and closed only over the socket of this host.", "permission"
        )


async def backup(api: RouteContext, request: Request, body: requests.Backup) -> Any:
    """Copy the database while it is in use."""

    def handle(state: State, now: Instant) -> CommandResult:
        try:
            return reply_only(
                BackupReply(path=body.path, bytes=api.context.store.backup(body.path))
            )
        except StoreError as error:
            raise CommandRejected(str(error), "failed") from None

    return await api.ask(handle)
