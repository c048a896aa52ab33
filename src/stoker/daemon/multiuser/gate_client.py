"""GateClient: takes users' connections and user executors from the gate, and asks it for more."""

from __future__ import annotations

import logging
import os
import resource
import socket
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

from stoker.executors.reactor import Reactor, Timer
from stoker.gate import protocol

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.05, 2.0
"""Delays of the next attempt to connect to the gate, which may be restarting."""
MAX_CONNECTIONS_PER_USER = 512
PACKETS_PER_TURN = 64
"""Packets that are read before anything else of the daemon is done."""

logger = logging.getLogger(__name__)


class UserExecutors(Protocol):
    """What takes the processes of users."""

    def on_process(self, uid: int, pid: int, sock: socket.socket) -> None:
        """Take the process of a user."""

    def on_refused(self, uid: int, why: str) -> None:
        """Note that a user may not have a process now."""

    def on_gate(self, device_groups: str) -> None:
        """Repeat the requests that an earlier gate had; see protocol.Hello."""

    def on_device_group(self, uid: int, name: str, path: str, why: str) -> None:
        """Take the directory of a device group, or why there is none."""

    def on_group_in_use(self) -> None:
        """Note that a device group could not be removed."""


OnConnection = Callable[[socket.socket, int, str, Callable[[], None]], None]
"""Called with a user's connection, its uid, why it may not run jobs (empty: it may), and what to
call when the connection is closed, in any thread."""


class GateClient:
    """One connection to the gate, made again whenever it ends; all of it in the daemon's thread."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket: socket.socket | None = None
        self._unsent: deque[protocol.Request] = deque()
        self._connections: Counter[int] = Counter()
        self._numbers: dict[int, int] = {}
        """The number of the last connection of each authorized user; 0: of an earlier gate."""
        self._max_connections = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self._pause = FIRST_RETRY_SECONDS
        self._is_reported = False
        self._write_fd = -1
        """For epoll, which has one callback per descriptor."""
        self._retry: Timer | None = None

    def open(
        self, reactor: Reactor, executors: UserExecutors, on_connection: OnConnection,
        needs_process: Callable[[int], bool],
    ) -> None:  # fmt: skip
        """Connect, now and again whenever the gate has ended.

        `needs_process` returns whether a user has jobs that have not ended.
        """
        self._reactor, self._executors = reactor, executors
        self._on_connection, self._needs_process = on_connection, needs_process
        self._retry = Timer(reactor, self._connect)
        self._connect()

    def close(self) -> None:
        """Close the connection; user executors and jobs go on."""
        if self._retry is not None:
            self._retry.cancel()
        self._disconnect()

    # -- the socket ---------------------------------------------------------------------

    def _connect(self) -> None:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            peer.connect(self.path)
        except OSError as error:
            peer.close()
            self._try_again(f"{self.path}: {error.strerror or error}")
            return
        _, uid = protocol.credentials(peer)
        if uid != 0:
            peer.close()
            self._try_again(f"{self.path} belongs to user {uid}, not to root")
            return
        peer.setblocking(False)
        self._socket, self._write_fd = peer, os.dup(peer.fileno())
        self._unsent.clear()
        self._numbers.clear()
        self._reactor.add_reader(peer.fileno(), self._receive)

    def _try_again(self, why: str) -> None:
        if not self._is_reported:
            logger.warning("the gate cannot be reached, so no user can connect: %s", why)
            self._is_reported = True
        assert self._retry is not None
        self._retry.request(self._pause)
        self._pause = min(self._pause * 2, LONGEST_RETRY_SECONDS)

    def _disconnect(self) -> None:
        if self._socket is not None:
            for fd in (self._socket.fileno(), self._write_fd):
                self._reactor.remove_reader(fd)
            os.close(self._write_fd)
            self._socket.close()
            self._socket = None

    def _lose(self, why: str) -> None:
        self._disconnect()
        self._try_again(why)

    def _receive(self) -> None:
        for _ in range(PACKETS_PER_TURN):
            if self._socket is None:
                return
            try:
                notice, fd = protocol.receive_notice(self._socket)
            except BlockingIOError:
                return
            except protocol.PeerClosed:
                self._lose("it has ended")
                return
            except (protocol.ProtocolError, OSError) as error:
                self._lose(str(error))
                return
            self._handle(notice, fd)

    def _send(self, request: protocol.Request) -> None:
        """Send a request; without a gate, drop it: all are made again for the next one."""
        if self._socket is not None:
            self._unsent.append(request)
            self._flush()

    def _flush(self) -> None:
        while self._unsent and self._socket is not None:
            try:
                protocol.send(self._socket, self._unsent[0])
            except BlockingIOError:
                self._reactor.add_writer(self._write_fd, self._flush)
                return
            except OSError as error:
                self._lose(str(error))
                return
            self._unsent.popleft()

    # -- from the gate ------------------------------------------------------------------

    def _handle(self, notice: protocol.Notice, fd: int | None) -> None:
        peer = socket.socket(fileno=fd) if fd is not None else None
        match notice:
            case protocol.Hello(_, uids, device_groups, more):
                self._greet(uids, device_groups, more)
            case protocol.Connection(uid, _, number, why) if peer is not None:
                if not why:
                    self._numbers[uid] = number
                self._take(uid, why, peer)
            case protocol.Executor(uid, pid) if peer is not None:
                self._executors.on_process(uid, pid, peer)
            case protocol.Refused(uid, "start_executor", why):
                self._executors.on_refused(uid, why)
            case protocol.DeviceGroup(uid, name, path, why):
                self._executors.on_device_group(uid, name, path, why)
            case protocol.Refused(uid, "remove_device_group", why):
                logger.info("a device group of user %d was not removed: %s", uid, why)
                self._executors.on_group_in_use()
            case protocol.Refused(uid, request, why):
                logger.info("the gate refused %s of user %d: %s", request, uid, why)

    def _greet(self, uids: list[int], device_groups: str, more: bool) -> None:
        self._numbers |= dict.fromkeys(uids, 0)
        if more:
            return
        self._pause, self._is_reported = FIRST_RETRY_SECONDS, False
        logger.info("connected to the gate; users with jobs or connections: %d", len(self._numbers))
        self._executors.on_gate(device_groups)
        for uid in list(self._numbers):
            self.release_if_unused(uid)

    def _take(self, uid: int, why: str, peer: socket.socket) -> None:
        total = self._connections.total()
        if self._connections[uid] >= MAX_CONNECTIONS_PER_USER or total >= self._max_connections:
            logger.warning("closed a connection of user %d, which has too many", uid)
            peer.close()
            return
        self._connections[uid] += 1

        def on_closed() -> None:
            self._reactor.call_soon_threadsafe(lambda: self._on_closed(uid))

        self._on_connection(peer, uid, why, on_closed)

    def _on_closed(self, uid: int) -> None:
        self._connections[uid] -= 1
        if not self._connections[uid]:
            del self._connections[uid]
            self.release_if_unused(uid)

    # -- requests -----------------------------------------------------------------------

    def start_executor(self, uid: int) -> None:
        """Ask for the process of a user."""
        self._send(protocol.StartExecutor(uid))

    def create_device_group(self, uid: int, name: str, devices: list[list[int]]) -> None:
        """Ask for a device group."""
        self._send(protocol.CreateDeviceGroup(uid, name, devices))

    def remove_device_group(self, uid: int, name: str) -> None:
        """Have a device group removed."""
        self._send(protocol.RemoveDeviceGroup(uid, name))

    def release_if_unused(self, uid: int) -> None:
        """Have the gate forget a user without connections and without jobs."""
        if uid in self._numbers and not self._connections[uid] and not self._needs_process(uid):
            self._send(protocol.Release(uid, self._numbers.pop(uid)))
