"""Reads /proc/PID; the only module of the daemon that parses it."""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

ENDED = frozenset("ZX")
"""States of processes that have ended: zombie, dead."""


class ProcessStat(NamedTuple):
    """The fields of /proc/PID/stat that are used."""

    name: bytes
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int
    """Start time in clock ticks since boot: with the pid, it identifies a process."""


def read_path(path: str, limit: int = -1) -> bytes:
    """Return the content of a file, up to `limit` bytes; raise OSError if it cannot be read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if limit >= 0:
            return os.read(fd, limit)
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def read_file(pid: int, name: str, limit: int = -1) -> bytes:
    """Return the content of /proc/PID/NAME; raise OSError if the process has ended."""
    return read_path(f"/proc/{pid}/{name}", limit)


def read_stat(pid: int) -> ProcessStat | None:
    """Return what the kernel knows of a process; None if it is gone or hidden from this user."""
    try:
        # The name is in parentheses and may contain any character, parentheses too.
        head, _, rest = read_file(pid, "stat").rpartition(b")")
        fields = rest.split(None, 20)
        parent, group, session, ticks = (int(fields[at]) for at in (1, 2, 3, 19))
        name, state = head.partition(b"(")[2], fields[0].decode()
    except (OSError, IndexError, ValueError):
        return None
    return ProcessStat(name, state, parent, group, session, ticks)


def process_state(pid: int, start_ticks: int) -> str:
    """Return the state of a process (see proc(5)); empty if it no longer exists."""
    stat = read_stat(pid)
    return stat.state if stat is not None and stat.start_ticks == start_ticks else ""


def read_environ(pid: int) -> list[bytes]:
    """Return the entries of the initial environment; none if it cannot be read."""
    try:
        return read_file(pid, "environ").split(b"\0")
    except OSError:
        return []


def read_variable(pid: int, name: str) -> str | None:
    """Return a variable of the initial environment; None if it is not set or not readable."""
    prefix = f"{name}=".encode()
    for entry in read_environ(pid):
        if entry.startswith(prefix):
            return os.fsdecode(entry[len(prefix) :])
    return None


def has_open(pid: int, path: str) -> bool:
    """Return whether a process has this file open, also if it was deleted since."""
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # it was closed meanwhile
                if os.readlink(f"/proc/{pid}/fd/{fd}").removesuffix(" (deleted)") == path:
                    return True
    except OSError:
        pass  # the process has ended, or belongs to another user
    return False


def has_signal_handler(pid: int, number: int) -> bool:
    """Return whether a process handles this signal."""
    try:
        caught = read_file(pid, "status").partition(b"\nSigCgt:")[2].split(None, 1)[0]
        return bool(int(caught, 16) >> (number - 1) & 1)
    except (OSError, ValueError, IndexError):
        return False
