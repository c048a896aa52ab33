"""Transport: how the agent's shell and further commands are opened on a node."""

from __future__ import annotations

import subprocess
from typing import Protocol

LOST_CODES = frozenset({255, 10, 12, 30, 35})
"""Exit codes of ssh and rsync when the connection is lost."""


class NotReady(OSError):
    """A connection cannot be made yet; the message says what the node waits for."""


class Transport(Protocol):
    """Opens one connection to a node at a time, and commands beside it."""

    @property
    def host(self) -> str:
        """The host name, for messages and for other nodes."""

    @property
    def key(self) -> str:
        """Identifies the connection on this node: names locks and unfinished uploads."""

    @property
    def run_suffix(self) -> str:
        """Distinguishes nodes with one home directory by the names of their run directories."""
        return ""

    def connect(self, command: str) -> subprocess.Popen[bytes]:
        """Open a connection that runs a shell command, with pipes; raise OSError if it cannot."""

    def describe_failure(self, code: int | None, stderr: str) -> str:
        """Return why the last connection could not be made, with what to do about it."""

    def disconnected(self) -> None:
        """Clean up after a connection has ended."""

    def command(self, script: str) -> list[str]:
        """Return the argv that runs a shell command over the open connection."""

    def rsync_shell(self) -> list[str] | None:
        """Return the argv, without a host, by which rsync opens its remote side, if it can."""

    @property
    def lost_codes(self) -> frozenset[int]:
        """Exit codes of a command when the connection is lost."""

    @property
    def rsync_host(self) -> str:
        """The host as rsync expects it in front of a path."""
