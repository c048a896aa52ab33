"""SupervisorPool: the supervisors of a daemon, watched and replaced when they are killed."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable
from typing import Any

from stoker.core.model.job import AttemptId
from stoker.executors.local.supervisor import spawn_supervisor
from stoker.executors.local.supervisor_client import SUPERVISORS, SupervisorClient
from stoker.executors.reactor import Reactor, Timer

FLUSH_SECONDS = 0.05
"""Delay of the next try after the socket of a supervisor was full."""

OnReport = Callable[[AttemptId, str, list[Any]], None]
"""Called with an attempt, what a supervisor reports about it, and details."""

logger = logging.getLogger(__name__)


class SupervisorPool:
    """The supervisors of a daemon: the next start goes to the one with the fewest starts."""

    def __init__(
        self,
        clients: list[SupervisorClient],
        exits_dir: str,
        reactor: Reactor,
        on_report: OnReport,
        on_died: Callable[[int], None],
    ) -> None:
        """`on_died` gets the pid of a supervisor that was killed, after it was replaced."""
        self.clients, self._exits_dir, self._reactor = clients, exits_dir, reactor
        self._on_report, self._on_died = on_report, on_died
        self._flushing = Timer(reactor, self._flush)

    @property
    def pids(self) -> set[int]:
        """The pids of the supervisors."""
        return {client.pid for client in self.clients}

    def open(self) -> None:
        """Begin to listen to the supervisors."""
        for client in self.clients:
            self._watch(client)

    def pick(self) -> SupervisorClient:
        """Return the supervisor for the next start; raise OSError if none can be forked."""
        self._replace()
        if not self.clients:
            raise OSError(errno.EAGAIN, "the supervisor process cannot be started")
        return min(self.clients, key=lambda client: client.starting)

    def send_start(self, client: SupervisorClient, *details: object) -> None:
        """Send a start to a supervisor, now or as soon as its socket takes it."""
        client.starting += 1
        client.send("start", *details)
        if client.unsent:
            self._flushing.request(FLUSH_SECONDS)

    def _flush(self) -> float | None:
        unsent = [client.flush() for client in self.clients]
        return FLUSH_SECONDS if any(unsent) else None

    def _watch(self, client: SupervisorClient) -> None:
        self._reactor.add_reader(client.wire.sock.fileno(), lambda: self._receive(client))

    def _receive(self, client: SupervisorClient) -> None:
        reports = client.receive()
        if reports is None:
            logger.warning("supervisor process %d died; starting a new one", client.pid)
            self._reactor.remove_reader(client.wire.sock.fileno())
            client.reap()
            self.clients.remove(client)
            self._replace()
            self._on_died(client.pid)
            return
        for kind, text, *details in reports:
            job, _, number = text.partition(".")
            self._on_report(AttemptId(int(job), int(number)), kind, details)

    def _replace(self) -> None:
        """Fork missing supervisors; there may be no memory for a process just now."""
        with contextlib.suppress(OSError):
            while len(self.clients) < SUPERVISORS:
                client = SupervisorClient(*spawn_supervisor(self._exits_dir))
                self.clients.append(client)
                self._watch(client)

    def close(self) -> None:
        """Let the supervisors go; their attempts continue."""
        for client in self.clients:
            client.wire.sock.close()
