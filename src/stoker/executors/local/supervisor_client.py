"""SupervisorClient: the daemon's end of one supervisor.

There are two supervisors, because starting a process blocks its parent until the program is
loaded: while one starts a job, the other reports exits and starts the next.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from typing import Any

from stoker.executors.local.supervisor import FramedSocket, frame, spawn_supervisor

SUPERVISORS = 2
MAX_ENVIRONMENTS = 32
"""Environments that a supervisor stores; others are sent again."""

Environment = Callable[[str], dict[str, str]]


class SupervisorClient:
    """Sends starts to one supervisor and receives its reports."""

    def __init__(self, pid: int, wire: FramedSocket) -> None:
        self.pid, self.wire = pid, wire
        self.starting = 0
        """Starts that it has not reported on yet."""
        self.environments: dict[str, None] = {}
        self.unsent = bytearray()

    def send(self, *message: object) -> None:
        """Send a message without blocking: the supervisor may have been stopped."""
        self.unsent += frame(message)
        self.flush()

    def flush(self) -> bool:
        """Send what the socket takes; return whether something is left."""
        try:
            while self.unsent:
                del self.unsent[: self.wire.sock.send(self.unsent, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            pass
        except OSError:  # it has died, as the next read shows
            self.unsent.clear()
        return bool(self.unsent)

    def receive(self) -> list[tuple[Any, ...]] | None:
        """Return its reports; None if it has ended."""
        try:
            batches = self.wire.receive()
        except ConnectionError:
            return None
        if batches is None:
            return None
        reports = [report for batch in batches for report in batch]
        self.starting -= sum(report[0] != "exited" for report in reports)
        return reports

    def send_environment(self, hash: str, environment: Environment) -> None:
        """Send an environment that the supervisor does not have; drop the oldest if needed."""
        if hash in self.environments:
            return
        self.send("environment", hash, environment(hash))
        self.environments[hash] = None
        if len(self.environments) > MAX_ENVIRONMENTS:
            oldest = next(iter(self.environments))
            del self.environments[oldest]
            self.send("forget", oldest)

    def reap(self) -> None:
        """Wait for a supervisor that has ended."""
        self.wire.sock.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def spawn_supervisors(exits_dir: str) -> list[SupervisorClient]:
    """Fork the supervisors; call this while the process is still small."""
    return [SupervisorClient(*spawn_supervisor(exits_dir)) for _ in range(SUPERVISORS)]
