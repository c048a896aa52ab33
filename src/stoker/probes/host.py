"""The machine itself, and the processes on it, straight from /proc."""

from __future__ import annotations

import os
import pwd
from functools import lru_cache

import msgspec

from stoker.executors.linux import procfs

_LONGEST_COMMAND = 4096


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who a process is."""

    pid: int
    user: str
    command: str
    session: int
    start_time: int
    """Clock ticks since boot: with the pid and the boot id, this names a process for good."""
    ppid: int


def boot_id() -> str:
    """Return the kernel's name for this boot; empty where it has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def hostname() -> str:
    """Return the machine's name without its domain."""
    return os.uname().nodename.partition(".")[0] or "localhost"


def cores() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0))


def memory_mib() -> int:
    """Return the machine's memory."""
    return _meminfo("MemTotal")


def process_info(pid: int) -> ProcessInfo | None:
    """Return who a process is; None when it is gone or hidden from us."""
    try:
        status = procfs.read_file(pid, "status")
        line = procfs.read_file(pid, "cmdline", _LONGEST_COMMAND)
        uid = int(status.partition(b"\nUid:")[2].split(maxsplit=2)[1])
    except (OSError, IndexError, ValueError):
        return None
    stat = procfs.read_stat(pid)
    if stat is None:
        return None
    words = line.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    return ProcessInfo(
        pid=pid,
        user=user_name(uid),
        command=words or f"[{stat.name.decode(errors='replace')}]",
        session=stat.session,
        start_time=stat.start_ticks,
        ppid=stat.parent,
    )


@lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    """Return a user's name, or the number where nobody knows it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _meminfo(field: str) -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name == field:
                return int(value.split()[0]) // 1024
    return 0
