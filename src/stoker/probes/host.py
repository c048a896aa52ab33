"""Facts about this node and its processes, from /proc."""

from __future__ import annotations

import os
import pwd
from functools import lru_cache

from stoker.executors.linux import procfs

_MAX_COMMAND = 4096


def boot_id() -> str:
    """Return the kernel's id of this boot; empty if there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def hostname() -> str:
    """Return the host name without its domain."""
    return os.uname().nodename.partition(".")[0] or "localhost"


def cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def memory_mib() -> int:
    """Return the memory of this node in MiB."""
    return _meminfo("MemTotal")


def process_info(pid: int) -> tuple[str, str] | None:
    """Return user and command of a process; None if it is gone or hidden."""
    try:
        status = procfs.read_file(pid, "status")
        line = procfs.read_file(pid, "cmdline", _MAX_COMMAND)
        uid = int(status.partition(b"\nUid:")[2].split(maxsplit=2)[1])
    except (OSError, IndexError, ValueError):
        return None
    stat = procfs.read_stat(pid)
    if stat is None:
        return None
    command = line.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    return user_name(uid), command or f"[{stat.name.decode(errors='replace')}]"


@lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    """Return a user's name, or the number if it has none."""
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
