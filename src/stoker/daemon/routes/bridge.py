"""RouteContext: await a command that the daemon's thread handles.

Route handlers run in the API thread. They never read the state or anything else that the daemon's
thread changes, but put a command into its queue and await the reply.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from stoker.core.state.state import State
from stoker.daemon.context import CommandHandler, reply_only
from stoker.daemon.handlers import nodes
from stoker.daemon.handlers.acts import last_submitter, record_change, recorded
from stoker.daemon.http.sessions import Sessions
from stoker.daemon.http.tokens import Tokens
from stoker.daemon.metrics.store import MetricsStore
from stoker.daemon.rights import Caller
from stoker.daemon.routes.event_stream import EncodedEvents
from stoker.daemon.routes.live_hub import LiveHub
from stoker.daemon.routes.report_rates import ReportRates
from stoker.daemon.runtime.command_queue import OnReply, QueuedCommand
from stoker.daemon.views.gpu import gpu_rows
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema.live import GpusFrame

if TYPE_CHECKING:
    from stoker.daemon.control.daemon import Daemon
    from stoker.daemon.http.listeners import TcpListeners

logger = logging.getLogger(__name__)


def reply_future() -> tuple[asyncio.Future[Any], OnReply]:
    """Return a future of the running event loop, and the callback with which any thread sets it."""
    event_loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = event_loop.create_future()

    def complete(value: Any, rejection: CommandRejected | None) -> None:
        if future.done():
            return
        if rejection is not None:
            future.set_exception(rejection)
        else:
            future.set_result(value)

    def on_reply(value: Any, rejection: CommandRejected | None) -> None:
        event_loop.call_soon_threadsafe(complete, value, rejection)

    return future, on_reply


def signal_future() -> tuple[asyncio.Future[Any], Callable[[], None]]:
    """Return a future without a value, and the callback with which any thread completes it."""
    future, on_reply = reply_future()
    return future, lambda: on_reply(None, None)


class RouteContext:
    """What the route handlers need. Handlers touch `daemon` only inside commands."""

    def __init__(self, daemon: Daemon, mode: str, listeners: TcpListeners) -> None:
        self.daemon, self.mode, self.listeners = daemon, mode, listeners
        self.context, self.put = daemon.context, daemon.commands.put
        self.encoded_events = EncodedEvents()
        self.boot = os.urandom(8).hex()
        """A random name of this run of the daemon."""
        self.hub = LiveHub(
            self.ask, lambda: daemon.engine.seq, daemon.context, daemon.publisher, self._gpus_frame
        )
        self.sessions = Sessions(f"{listeners.state}/sessions.json")
        self.tokens = Tokens(f"{listeners.state}/tokens.json")
        self.simulation = asyncio.Semaphore(1)
        """Held while a what-if simulation runs."""
        self._reopen_ports()
        self.report_rates = ReportRates()
        self._verb = self._what = ""
        self._verified: dict[int, str] = {}
        """Names of users by uid whose jobs are on record under this name."""
        self.metrics = MetricsStore(daemon.context.directory)

    def for_caller(self, caller: Caller) -> RouteContext:
        """Return a copy for the requests of one user of a system daemon."""
        api = copy(self)
        api.context = replace(self.context, caller=caller)
        return api

    async def verify(self, caller: Caller) -> None:
        """Reject a user whose uid belonged to another user, with jobs on record."""
        if self._verified.get(caller.uid) == caller.name:
            return
        before = await self.ask(partial(last_submitter, self.context, caller.uid))
        if before not in (None, caller.name):
            raise CommandRejected(
                f"uid {caller.uid} belonged to {before}, whose jobs are on record: an administrator"
                f" must give {caller.name} another uid.",
                "permission",
            )
        self._verified[caller.uid] = caller.name

    def record_acts(self, verb: str, what: str) -> None:
        """Record what the requests of this user change."""
        self._verb, self._what = verb, what

    async def record_change(self) -> None:
        """Record that this request has changed the daemon itself."""
        if self._verb and self.context.caller is not None:
            await self._put(partial(record_change, self.context.caller, self._verb, self._what))

    async def ask(self, handler: CommandHandler) -> Any:
        """Return the reply of a handler, or raise its rejection."""
        if self._verb and self.context.caller is not None:
            handler = recorded(handler, self.context.caller, self._verb, self._what)
        return await self._put(handler)

    async def _put(self, handler: CommandHandler) -> Any:
        future, on_reply = reply_future()
        self.put(QueuedCommand(handler, on_reply))
        return await future

    def _reopen_ports(self) -> None:
        """Open the ports again where browsers had sessions with an earlier daemon."""
        for address in self.sessions.addresses:
            try:
                self.listeners.add(address)
            except CommandRejected as rejection:
                logger.warning("%s", rejection.message)

    def gpu_readings(self, node: str) -> dict[str, dict[str, Any]]:
        """Return the last readings of a node's GPUs, by UUID; for the daemon's thread only."""
        if node == self.context.node:
            return self.daemon.gpus.detector.latest
        return nodes.gpu_readings(self.daemon.registry, node)

    def _gpus_frame(self, state: State, now: Instant) -> CommandResult:
        """Return the use of every GPU, and keep the readings coming."""
        self.daemon.gpus.keep_fresh(lambda: None)
        rows = gpu_rows(state, self.gpu_readings)
        return reply_only(GpusFrame(t=round(now.wall, 3), g=rows))

    def warnings(self) -> list[str]:
        """Return what users should know about the daemon; for the daemon's thread only."""
        daemon = self.daemon
        notes = (
            *daemon.notifier.warnings(),
            daemon.engine.store_error,
            daemon.store.durability_warning(),
            daemon.sync.error,
            daemon.gpus.note,
        )
        locks = daemon.local.gpu_locks.problems.values()
        return [*daemon.store.warnings(), *(note for note in notes if note), *locks]
