"""The daemon's side of its keepers: who starts the next job, and what each has been told.

There are two, because starting a process blocks whoever does it until the program is
loaded: while one keeper starts a job, the other reports ends and starts the next.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from typing import Any

from stoker.executors.local.supervisor import FramedSocket, frame, spawn_keeper

KEEPERS = 2
ENVIRONMENTS = 32
"""Environments that a keeper remembers; others are sent again."""

Environment = Callable[[str], dict[str, str]]


class SupervisorClient:
    """One keeper, as the daemon knows it."""

    def __init__(self, pid: int, wire: FramedSocket) -> None:
        self.pid, self.wire = pid, wire
        self.starting = 0
        """Orders that it has not reported on yet."""
        self.known: dict[str, None] = {}
        self.unsent = bytearray()

    def send(self, *message: object) -> None:
        """Tell it, without waiting: it may have been stopped."""
        self.unsent += frame(message)
        self.flush()

    def flush(self) -> bool:
        """Send what there is room for; return whether something is left."""
        try:
            while self.unsent:
                del self.unsent[: self.wire.sock.send(self.unsent, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            pass
        except OSError:  # it has died, as the next look at its socket will show
            self.unsent.clear()
        return bool(self.unsent)

    def receive(self) -> list[tuple[Any, ...]] | None:
        """Its reports; None when it is gone."""
        try:
            batches = self.wire.receive()
        except ConnectionError:
            return None
        if batches is None:
            return None
        reports = [report for batch in batches for report in batch]
        self.starting -= sum(report[0] != "exited" for report in reports)
        return reports

    def provide(self, hash: str, environment: Environment) -> None:
        """See that it has an environment, and not too many of them."""
        if hash in self.known:
            return
        self.send("environment", hash, environment(hash))
        self.known[hash] = None
        if len(self.known) > ENVIRONMENTS:
            oldest = next(iter(self.known))
            del self.known[oldest]
            self.send("forget", oldest)

    def bury(self) -> None:
        """It is gone: leave no zombie."""
        self.wire.sock.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def spawn_keepers(exits_dir: str) -> list[SupervisorClient]:
    """Fork the keepers; call this while the process is still small."""
    return [SupervisorClient(*spawn_keeper(exits_dir)) for _ in range(KEEPERS)]
