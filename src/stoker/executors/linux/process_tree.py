"""The whole process tree of an attempt: finding it, signalling it."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from _blake2 import blake2b
from collections.abc import Callable, Collection, Iterable

from msgspec import Struct

from stoker.executors.linux import procfs
from stoker.wire import RLIMIT_LOCKS

TOKEN = "STOKER_TOKEN"  # noqa: S105 - a mark, not a secret
"""Every process of an attempt carries this variable, so that none can slip away."""
ROUNDS = 50
"""Scans within which a tree must be stopped that is to be killed."""


def mark_of(token: str) -> int:
    """The soft RLIMIT_LOCKS of the processes of an attempt.

    Linux has not enforced this limit since 2.4.25, and a process inherits it whatever it does
    to its session, its parents and its environment. So it identifies a process that has fled.
    """
    return 1 << 60 | int.from_bytes(blake2b(token.encode(), digest_size=7).digest(), "big")


def _is_mark(limit: bytes) -> bool:
    """Return True if a soft RLIMIT_LOCKS is the mark of an attempt."""
    return limit.isdigit() and int(limit) >> 60 == 1


def can_mark() -> bool:
    """Whether processes can be given such a limit: it is below the hard limit, as usual."""
    hard = resource.getrlimit(RLIMIT_LOCKS)[1]
    return hard == resource.RLIM_INFINITY or hard >= 1 << 61


class Process(Struct, frozen=True):
    """What the kernel says about a process."""

    parent: int
    group: int
    session: int
    ticks: int
    """Its start time, in clock ticks since boot."""
    ended: bool
    """A zombie: it has ended, and its parent has not waited for it."""
    limit: bytes
    """Its soft RLIMIT_LOCKS."""
    token: str | None


class Snapshot:
    """All processes at one moment, and to which attempts they belong."""

    def __init__(self, spare: Collection[int] = (), stop: Iterable[str] = ()) -> None:
        """Read all processes; those with the mark of one of these tokens are stopped at once.

        `spare` are processes that belong to no attempt.
        """
        others = {os.getpid(), *spare}
        limits = {b"%d" % mark_of(token) for token in stop}

        def read(pid: int) -> Process:
            limit = _limit(pid)
            if limit in limits and pid not in others:
                signal_all([pid], signal.SIGSTOP)  # before it forks and exits
            return _process(pid, limit)

        processes, self.complete = _processes(read)
        """Whether no process can have been missed."""
        self.processes = {pid: process for pid, process in processes.items() if pid not in others}
        self._index: dict[tuple[str, int | bytes | str], set[int]] = {}
        for pid, process in self.processes.items():
            if process.ended:
                continue
            for key in (
                ("parent", process.parent),
                ("session", process.session),
                ("session", process.group),
                ("limit", process.limit),
                ("token", process.token or ""),
            ):
                self._index.setdefault(key, set()).add(pid)

    def members(self, token: str, session: int | None = None, ticks: int = 0) -> list[int]:
        """Return the live processes of an attempt: its session, its marks, and their descendants.

        `ticks` is the start time of the session's leader, where that is known.
        """
        first = self.processes.get(session or 0)
        if first is not None and ticks and first.ticks != ticks:
            session = None  # the pid was reused
        new = self._of("limit", b"%d" % mark_of(token)) | self._of("token", token)
        if session is not None:
            new |= self._of("session", session)
        members: set[int] = set()
        while new:
            members |= new
            new = {child for pid in new for child in self._of("parent", pid)} - members
        return sorted(members)

    def leader(self, token: str) -> tuple[int, int] | None:
        """Return pid and start time of the first process, also of a zombie; None if reaped."""
        limit = b"%d" % mark_of(token)
        candidates = [
            (process.session != pid, process.ticks, pid)
            for pid, process in self.processes.items()
            if process.limit == limit or process.token == token
        ]
        return (min(candidates)[2], min(candidates)[1]) if candidates else None

    def zombies(self) -> list[tuple[int, bytes]]:
        """Return pid and mark of the ended processes of attempts that this process must reap."""
        ours = b"%d" % resource.getrlimit(RLIMIT_LOCKS)[0]  # a daemon may be a job of another one
        return [
            (pid, process.limit)
            for pid, process in self.processes.items()
            if process.ended and process.parent == os.getpid() and process.limit != ours
            if _is_mark(process.limit)
        ]

    def tokens(self, prefix: str) -> set[str]:
        """Return the tokens with this prefix in the environments of live processes."""
        return {
            str(value)
            for kind, value in self._index
            if kind == "token" and str(value).startswith(prefix)
        }

    def _of(self, kind: str, value: int | bytes | str) -> set[int]:
        return self._index.get((kind, value), set())


def _processes(read: Callable[[int], Process]) -> tuple[dict[int, Process], bool]:
    """Return all processes, also those created while the others were read, and a flag.

    Otherwise a process that forks and exits faster than we read could be missed. The flag is
    False if new processes kept appearing.
    """
    processes: dict[int, Process] = {}
    last = _last_pid()
    pids: Iterable[int] = _pids()
    for _ in range(ROUNDS):
        for pid in pids:
            with contextlib.suppress(OSError, IndexError, ValueError):  # it has ended
                processes[pid] = read(pid)
        before, last = last, _last_pid()
        if last == before:
            return processes, True
        pids = range(before + 1, last + 1) if last > before else _pids()
    return processes, False


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _limit(pid: int) -> bytes:
    limits = procfs.read_file(pid, "limits")
    return limits.partition(b"Max file locks")[2].split(None, 1)[0]


def _process(pid: int, limit: bytes) -> Process:
    stat = procfs.read_stat(pid)
    if stat is None:
        raise ProcessLookupError
    ended = stat.state in procfs.ENDED
    token = None if ended or stat.parent == 2 else token_of(pid)  # 2: kernel threads
    return Process(stat.parent, stat.group, stat.session, stat.start_ticks, ended, limit, token)


def _last_pid() -> int:
    """Return the pid that was allocated last; a constant if the kernel does not report it."""
    for path in ("/proc/sys/kernel/ns_last_pid", "/proc/loadavg"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(procfs.read_path(path).split()[-1])
    return 0


def token_of(pid: int) -> str | None:
    """Return the attempt token in the environment of a process, if it is readable."""
    return procfs.read_variable(pid, TOKEN) or None


def group_alive(session: int) -> bool:
    """Return whether a process of the job's group lives. One system call."""
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def in_other_namespaces(pids: Iterable[int]) -> list[int]:
    """Return the processes that are in another pid namespace, such as those in a container."""
    own_namespace, others = os.readlink("/proc/self/ns/pid"), []
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            if os.readlink(f"/proc/{pid}/ns/pid") != own_namespace:
                others.append(pid)
    return others


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process; ignore those that have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill(find: Callable[[], Iterable[int]]) -> None:
    """Kill all processes that `find` returns, and those that they create meanwhile.

    A process that is stopped cannot fork: nothing is killed before everything is stopped.
    """
    stopped: set[int] = set()
    for _ in range(ROUNDS):
        running = set(find()) - stopped
        if not running:
            break
        signal_all(running, signal.SIGSTOP)
        stopped |= running
    signal_all(stopped, signal.SIGKILL)


def end(pids: list[int], number: int) -> None:
    """Ask processes to end, waking the stopped ones so that they can."""
    signal_all(pids, number)
    if number != signal.SIGKILL:
        signal_all(pids, signal.SIGCONT)
