"""The whole process tree of an attempt: finding it, signalling it."""

from __future__ import annotations

import contextlib
import os
import signal

TOKEN = "STOKER_TOKEN"  # noqa: S105 - a mark, not a secret
"""Every process of an attempt carries this variable, so that none can slip away."""


def group_alive(session: int) -> bool:
    """Whether any process is left in the job's own group. One system call."""
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def members(session: int, token: str) -> list[int]:
    """Every living process of an attempt: its session, their descendants, its token."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        pid = int(name)
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it ended while we were looking
        if fields[0] in (b"Z", b"X"):
            continue
        parents[pid] = int(fields[1])
        if int(fields[3]) == session or int(fields[2]) == session:
            found.add(pid)
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        grown = bool(children)
        found |= children
    for pid in parents:
        if pid not in found and carries(pid, token):
            found.add(pid)
    found.discard(os.getpid())
    return sorted(found)


def carries(pid: int, token: str) -> bool:
    """Whether a process has this attempt's token in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            wanted = f"{TOKEN}={token}".encode()
            return wanted in file.read().split(b"\0")
    except OSError:
        return False


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for this signal."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, ValueError):
        pass
    return False


def bearers(prefix: str) -> dict[str, list[int]]:
    """All processes that carry a token with this prefix, by token."""
    found: dict[str, list[int]] = {}
    start = f"{TOKEN}={prefix}".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                entries = file.read().split(b"\0")
        except OSError:
            continue
        for entry in entries:
            if entry.startswith(start):
                token = os.fsdecode(entry).partition("=")[2]
                found.setdefault(token, []).append(int(name))
    return found


def signal_all(pids: list[int], number: int) -> None:
    """Send a signal to each; those that are gone do not matter."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end(pids: list[int], number: int) -> None:
    """Ask processes to end, waking the stopped ones so that they can."""
    signal_all(pids, number)
    if number != signal.SIGKILL:
        signal_all(pids, signal.SIGCONT)
