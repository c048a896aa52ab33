"""CommandQueue: commands from other threads, until the daemon stops."""

from __future__ import annotations

from _queue import SimpleQueue
from collections.abc import Callable
from typing import Any

from stoker.core.state.state import State
from stoker.daemon.context import CommandHandler, daemon_stopping
from stoker.engine import Command, CommandRejected, CommandResult, Instant
from stoker.executors.linux.epoll_reactor import name_of

OnReply = Callable[[Any, CommandRejected | None], None]
"""Called with the value of a reply and None, or with None and a rejection."""


class QueuedCommand:
    """A handler, and where its reply goes."""

    def __init__(self, handler: CommandHandler, on_reply: OnReply) -> None:
        self._handler, self._on_reply = handler, on_reply

    @property
    def name(self) -> str:
        """The name of the handler."""
        return name_of(self._handler)

    def handle(self, state: State, now: Instant) -> CommandResult:
        """Return the events and the reply, or raise CommandRejected."""
        return self._handler(state, now)

    def reply(self, value: Any) -> None:
        """Pass the reply on."""
        self._on_reply(value, None)

    def reject(self, rejection: CommandRejected) -> None:
        """Pass the rejection on."""
        self._on_reply(None, rejection)


class CommandQueue:
    """A queue that any thread may fill and the daemon's thread drains."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called by the thread that puts a command."""
        self._wake = wake
        self._queue: SimpleQueue[Command] = SimpleQueue()
        self._is_closed = False

    def put(self, command: Command) -> None:
        """Have a command handled in the next cycle, or reject it after `close`."""
        if self._is_closed:
            command.reject(daemon_stopping())
            return
        self._queue.put(command)
        self._wake()

    def drain(self) -> list[Command]:
        """Return and remove all commands."""
        commands = []
        while not self._queue.empty():
            commands.append(self._queue.get())
        return commands

    def close(self) -> None:
        """Reject every command from now on, and those that still wait."""
        self._is_closed = True
        for command in self.drain():
            command.reject(daemon_stopping())
