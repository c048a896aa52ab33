"""Lifecycle: run, drain, stop, exit when idle; by commands and by signals."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
from collections.abc import Callable
from enum import Enum, auto

from stoker.executors.reactor import Reactor, Timer

logger = logging.getLogger(__name__)


class Phase(Enum):
    """What the daemon still does."""

    RUNNING = auto()
    DRAINING = auto()
    """Nothing new is started; it stops when what runs has ended."""
    STOPPING = auto()
    """Nothing new is started; it is about to stop."""
    STOPPED = auto()
    """The loop ends."""


class Lifecycle:
    """The phase of the daemon, and what changes it."""

    def __init__(
        self,
        reactor: Reactor,
        on_signal: Callable[[int], bool] = lambda _: False,
        idle_exit: float | None = None,
    ) -> None:
        """`on_signal` returns False for a signal that stops the daemon."""
        self.phase = Phase.RUNNING
        self._reactor, self._on_signal, self._idle_exit = reactor, on_signal, idle_exit
        self._idle_since: float | None = None
        self._idle_timer = Timer(reactor, self._exit_if_idle)
        self._sockets: tuple[socket.socket, socket.socket] | None = None

    @property
    def may_start(self) -> bool:
        """Whether jobs may be started."""
        return self.phase is Phase.RUNNING

    @property
    def is_draining(self) -> bool:
        """Whether the daemon stops when what runs has ended."""
        return self.phase is Phase.DRAINING

    @property
    def is_stopped(self) -> bool:
        """Whether the loop ends."""
        return self.phase is Phase.STOPPED

    def drain(self) -> None:
        """Start nothing new; stop when what runs has ended."""
        if not self.is_stopped:
            self.phase = Phase.DRAINING

    def prepare_stop(self) -> None:
        """Start nothing new: `stop` or `drain` follows."""
        if self.may_start:
            self.phase = Phase.STOPPING

    def stop(self) -> None:
        """End the loop; running jobs continue under their supervisors."""
        self.phase = Phase.STOPPED

    def stop_if_drained(self, is_busy: bool) -> None:
        """Stop at the end of draining."""
        if self.is_draining and not is_busy:
            self.stop()

    def set_busy(self, is_busy: bool) -> None:
        """Note whether there is work; without it, stop after a while."""
        if is_busy:
            self._idle_since = None
        elif self._idle_since is None and self._idle_exit is not None:
            self._idle_since = self._reactor.time()
            self._idle_timer.request(self._idle_exit)

    def _exit_if_idle(self) -> float | None:
        """Stop after a while without work; return the seconds until then."""
        if self._idle_since is None or self._idle_exit is None:
            return None
        left = self._idle_since + self._idle_exit - self._reactor.time()
        if left > 0:
            return left
        logger.info("nothing to do for %g s", self._idle_exit)
        self.stop()
        return None

    def listen_for_signals(self) -> None:
        """Handle SIGTERM, SIGINT and SIGUSR1 in the loop, and ignore SIGHUP."""
        read, write = self._sockets = socket.socketpair()
        read.setblocking(False)
        write.setblocking(False)
        signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._reactor.add_reader(read.fileno(), self._read_signals)

    def _read_signals(self) -> None:
        if self._sockets is None:
            return
        with contextlib.suppress(BlockingIOError):
            for number in self._sockets[0].recv(64):
                logger.info("received %s", signal.Signals(number).name)
                if not self._on_signal(number):
                    self.stop()

    def close(self) -> None:
        """Stop handling signals, which are ignored from now on."""
        if self._sockets is not None:
            signal.set_wakeup_fd(-1)
            for end in self._sockets:
                end.close()
            self._sockets = None
