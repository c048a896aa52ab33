"""The processes of the users, as the daemon has them: requested, connected, ended, idle."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from stoker.core.events import Event, ProcessStarted
from stoker.core.launch.launch import Launch
from stoker.executors.reactor import Reactor, Timer
from stoker.executors.user import wire

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 60.0
"""Delays of the next request for a process that ended soon, or was refused."""
STABLE_SECONDS = 10.0
"""A process that lived as long did not fail because of its beginning."""
IDLE_SECONDS = 60.0
"""Time that a process without attempts is kept."""
MAX_ENVIRONMENTS = 32
"""Environments that a process stores; others are sent again."""

OnFileData = Callable[[wire.FileData], None]

logger = logging.getLogger(__name__)


def plausible(event: Event, since: float, uid: int) -> Event:
    """Return an event with what a process of a user cannot know otherwise than we do.

    The process belongs to the user, who may have changed it: nothing happens before the start or
    in the future, and the pid is that of a process of the user.
    """
    now = time.time()
    at = max(min(event.at, now), min(since, now))
    if not isinstance(event, ProcessStarted):
        return replace(event, at=at, part=None)
    boot = min(event.boot, time.clock_gettime(time.CLOCK_BOOTTIME))
    pid = event.pid if event.pid is not None and _may_be_of(event.pid, uid) else None
    return replace(event, at=at, boot=boot, pid=pid, part=None)


def _may_be_of(pid: int, uid: int) -> bool:
    """Return whether a process belongs to a user, or has ended."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == uid
    except OSError:
        return True


class UserProcess:
    """The daemon's end of the process of one user."""

    def __init__(self, pid: int, connection: wire.Connection, now: float) -> None:
        self.pid, self.connection, self.since = pid, connection, now
        self.send = connection.send
        self._environments: dict[str, None] = {}
        self._scripts: set[str] = set()

    def provide(
        self,
        launch: Launch,
        secret: Callable[[str], bytes | None],
        blob: Callable[[str], bytes | None],
    ) -> None:
        """Send the environment and the script of a launch, unless the process has them.

        What is not stored any more is not sent; the process then reports that the start failed.
        """
        connection, hash = self.connection, launch.spec.environment
        if hash not in self._environments and (values := secret(hash)) is not None:
            connection.queue(wire.KeepEnvironment(hash, values))
            self._environments[hash] = None
            if len(self._environments) > MAX_ENVIRONMENTS:
                oldest = next(iter(self._environments))
                del self._environments[oldest]
                connection.queue(wire.ForgetEnvironment(oldest))
        if launch.script is not None and launch.script not in self._scripts:
            if (text := blob(launch.script)) is not None:
                connection.queue(wire.KeepScript(launch.script, text))
            self._scripts.add(launch.script)


class Processes:
    """One process per user that has attempts, requested from the gate."""

    def __init__(
        self,
        reactor: Reactor,
        configuration: wire.Configure,
        request: Callable[[int], None],
        is_needed: Callable[[int], bool],
        on_message: Callable[[int, wire.Message], None],
        on_idle: Callable[[int], None],
    ) -> None:
        self._reactor, self._configuration = reactor, configuration
        self._request, self._is_needed = request, is_needed
        self._on_message, self._on_idle = on_message, on_idle
        self._processes: dict[int, UserProcess] = {}
        self._requested: set[int] = set()
        """Users with a process that is being started."""
        self._failures: dict[int, int] = {}
        self._retries: dict[int, Timer] = {}
        self._idle_checks: dict[int, Timer] = {}

    def get(self, uid: int) -> UserProcess | None:
        """Return the process of a user; None if there is none now."""
        return self._processes.get(uid)

    def pids(self) -> dict[int, int]:
        """Return the pids by uid."""
        return {uid: process.pid for uid, process in self._processes.items()}

    def request(self, uid: int) -> None:
        """Have a process started, unless there is one, or the next try is due later."""
        retry = self._retries.get(uid)
        if uid in self._processes or uid in self._requested or (retry and retry.is_set):
            return
        self._requested.add(uid)
        self._request(uid)

    def request_again(self) -> None:
        """Repeat all requests: the gate that had them has ended."""
        for uid in self._requested:
            self._request(uid)

    def add(
        self, uid: int, pid: int, sock: socket.socket, on_ended: Callable[[int, str], None]
    ) -> UserProcess:
        """Take a process that was started, in place of an earlier one."""
        self._requested.discard(uid)
        earlier = self._processes.pop(uid, None)
        if earlier is not None:
            earlier.connection.close()
        connection = wire.Connection(
            sock, self._reactor, wire.ToDaemon, wire.MAX_TO_DAEMON,
            partial(self._on_message, uid), lambda why: self._on_closed(uid, why, on_ended),
        )  # fmt: skip
        process = self._processes[uid] = UserProcess(pid, connection, self._reactor.time())
        process.send(self._configuration)
        self.check_idle(uid)
        return process

    def _on_closed(self, uid: int, why: str, on_ended: Callable[[int, str], None]) -> None:
        """Request another process if one is needed; later if this one ended soon."""
        process = self._processes.pop(uid)
        logger.warning("the process of user %d (pid %d): %s", uid, process.pid, why)
        is_stable = self._reactor.time() - process.since > STABLE_SECONDS
        failures = self._failures[uid] = 0 if is_stable else self._failures.get(uid, 0) + 1
        on_ended(uid, why)
        # The first failure may be a kill: attempts wait for the next process.
        pause = FIRST_RETRY_SECONDS * 2 ** (failures - 2) if failures > 1 else 0.0
        self._retry(uid, min(pause, LONGEST_RETRY_SECONDS))

    def on_refused(self, uid: int, delay: float) -> None:
        """Try again later if a process is needed."""
        self._requested.discard(uid)
        self._retry(uid, min(delay, LONGEST_RETRY_SECONDS))

    def _retry(self, uid: int, delay: float) -> None:
        def request() -> None:
            if self._is_needed(uid):
                self.request(uid)

        self._retries.setdefault(uid, Timer(self._reactor, request)).request(delay)

    def check_idle(self, uid: int) -> None:
        """End the process of a user that has had no attempts for a while."""
        if uid not in self._processes or self._is_needed(uid):
            return

        def check() -> None:
            self._end_if_idle(uid)

        timer = self._idle_checks.setdefault(uid, Timer(self._reactor, check))
        timer.cancel()
        timer.request(IDLE_SECONDS)

    def _end_if_idle(self, uid: int) -> None:
        process = self._processes.get(uid)
        if process is None or self._is_needed(uid):
            return
        del self._processes[uid]
        process.connection.close()
        self._on_idle(uid)

    def close(self) -> None:
        """Close all connections."""
        for process in self._processes.values():
            process.connection.close()
        for timer in (*self._retries.values(), *self._idle_checks.values()):
            timer.cancel()
        self._processes.clear()
