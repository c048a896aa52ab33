"""Messages between the system daemon and the process of a user: msgpack with a length in front."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from stoker.core.events import (
    AttemptLost,
    ProcessExited,
    ProcessStarted,
    StartCancelled,
    StartFailed,
)
from stoker.core.launch.launch import Launch
from stoker.core.model.job import AttemptId
from stoker.executors.port import Barrier, RecoverableAttempt
from stoker.executors.reactor import Reactor

MAX_TO_PROCESS = 512 << 20
"""Bytes of a message: environments and scripts are as large as a request may be."""
MAX_TO_DAEMON = 1 << 20
MAX_UNSENT = 1 << 30
"""Bytes that wait for a process which does not read; then its connection is closed."""
READ_BYTES = 1 << 18


class Message(Struct, frozen=True, tag=True, array_like=True):
    """One message."""


class Configure(Message, frozen=True):
    """The first message to a process."""

    install: str
    grace: float
    engine: str
    """The container engine to use; empty: podman or docker."""
    locks: str
    """The directory of the GPU locks."""
    locks_uid: int
    """The user of the daemon, to which the lock files belong."""


class KeepEnvironment(Message, frozen=True):
    """An environment for later starts."""

    hash: str
    values: bytes


class ForgetEnvironment(Message, frozen=True):
    """An environment that is sent again before it is used again."""

    hash: str


class KeepScript(Message, frozen=True):
    """A script for later starts."""

    hash: str
    text: bytes


class Start(Message, frozen=True):
    """Start an attempt."""

    launch: Launch
    barrier: Barrier | None = None


class CancelStart(Message, frozen=True):
    """Report a start as cancelled, unless a supervisor has it."""

    attempt: AttemptId
    why: str


class Release(Message, frozen=True):
    """Let a part that waits at its barrier run, or give it up."""

    attempt: AttemptId
    rank: int
    environment: dict[str, str] | None


class Terminate(Message, frozen=True):
    """Terminate a process tree."""

    attempt: AttemptId
    grace: float


class Signal(Message, frozen=True):
    """Send a signal."""

    attempt: AttemptId
    number: int
    only_if_handled: bool
    to_script: bool


class Suspend(Message, frozen=True):
    """Stop all processes of an attempt in place."""

    attempt: AttemptId


class Resume(Message, frozen=True):
    """Let suspended processes continue."""

    attempt: AttemptId


class Control(Message, frozen=True):
    """Write a control file for the training library."""

    attempt: AttemptId
    rank: int
    name: str
    text: str


class Recover(Message, frozen=True):
    """The attempts of the user that are under way; sent once, before any start."""

    attempts: list[RecoverableAttempt]


class DropProofs(Message, frozen=True):
    """The ends of all attempts but those to recover are on disk: what proves them may go."""

    next_id: int


class Acknowledge(Message, frozen=True):
    """The ends of these attempts are on disk."""

    attempts: list[AttemptId]


class ReadFile(Message, frozen=True):
    """Read a part of a file of the user; a negative offset counts from its end."""

    request: int
    path: str
    offset: int
    size: int


class Happened(Message, frozen=True):
    """What became of an attempt."""

    event: ProcessStarted | ProcessExited | AttemptLost | StartCancelled | StartFailed


class ReportData(Message, frozen=True):
    """Bytes that were appended to a training report."""

    attempt: AttemptId
    offset: int
    data: bytes


class Ready(Message, frozen=True):
    """A part waits at its barrier."""

    attempt: AttemptId
    rank: int
    port: int


class FileData(Message, frozen=True):
    """What was read of a file."""

    request: int
    offset: int
    data: bytes
    size: int
    """Of the file; -1: it cannot be read."""
    changed_at: float
    error: str = ""


ToProcess = (
    Configure | KeepEnvironment | ForgetEnvironment | KeepScript | Start | CancelStart | Release
    | Terminate | Signal | Suspend | Resume | Control | Recover | DropProofs | Acknowledge
    | ReadFile
)  # fmt: skip
ToDaemon = Happened | ReportData | Ready | FileData


class InvalidMessage(Exception):
    """The other side sent what the protocol does not have."""


class Connection:
    """Sends and receives messages over a stream socket without blocking."""

    def __init__(
        self,
        sock: socket.socket,
        reactor: Reactor,
        kinds: Any,
        max_bytes: int,
        on_message: Callable[[Any], object],
        on_closed: Callable[[str], object],
    ) -> None:
        """`kinds` are the messages that may arrive; `on_closed` gets the reason, once."""
        sock.setblocking(False)
        self._sock, self._reactor, self._max_bytes = sock, reactor, max_bytes
        self._decoder = msgspec.msgpack.Decoder(kinds)
        self._encoder = msgspec.msgpack.Encoder()
        self._on_message, self._on_closed = on_message, on_closed
        self._received = bytearray()
        self._unsent = bytearray()
        self._write_fd = os.dup(sock.fileno())
        """For epoll, which has one callback per descriptor."""
        self._is_waiting = False
        self.is_open = True
        reactor.add_reader(sock.fileno(), self._receive)

    def send(self, message: Message) -> None:
        """Send a message, now or as soon as the socket takes it."""
        self.queue(message)
        self.flush()

    def queue(self, message: Message) -> None:
        """Queue a message for the next flush."""
        data = self._encoder.encode(message)
        self._unsent += len(data).to_bytes(4, "little")
        self._unsent += data

    def flush(self) -> None:
        """Send what the socket takes."""
        if self._is_waiting or not self.is_open:
            return
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            if len(self._unsent) > MAX_UNSENT:
                self._end("it does not read what it is sent")
                return
            self._is_waiting = True
            self._reactor.add_writer(self._write_fd, self._on_writable)
        except OSError:
            self._unsent.clear()  # it has ended, as the next read shows

    def _on_writable(self) -> None:
        self._is_waiting = False
        self.flush()

    def _receive(self) -> None:
        try:
            chunk = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if not chunk:
            self._end("it has ended")
            return
        self._received += chunk
        try:
            messages = list(self._take())
        except (InvalidMessage, msgspec.MsgspecError, ValueError) as error:
            self._end(f"it sent an invalid message: {error}")
            return
        for message in messages:
            if not self.is_open:
                return
            self._on_message(message)

    def _take(self) -> list[Any]:
        """Return the messages that have arrived whole."""
        messages, start, data = [], 0, self._received
        while len(data) - start >= 4:
            size = int.from_bytes(data[start : start + 4], "little")
            if size > self._max_bytes:
                raise InvalidMessage(f"{size} bytes are too many")
            end = start + 4 + size
            if end > len(data):
                break
            with memoryview(data) as view:
                messages.append(self._decoder.decode(view[start + 4 : end]))
            start = end
        del data[:start]
        return messages

    def _end(self, why: str) -> None:
        if self.is_open:
            self.close()
            self._on_closed(why)

    def close(self) -> None:
        """Send what the socket takes, and close it; safe to repeat."""
        if not self.is_open:
            return
        self.flush()
        self.is_open = False
        self._reactor.remove_reader(self._sock.fileno())
        self._reactor.remove_reader(self._write_fd)
        os.close(self._write_fd)
        self._sock.close()
