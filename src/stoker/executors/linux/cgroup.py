"""Cgroups: one control group per attempt, if the node allows that."""

from __future__ import annotations

import contextlib
import os
import signal


class Cgroups:
    """Version 2 groups below that of the daemon; without delegation, all methods do nothing."""

    def __init__(self, root: str | None) -> None:
        self.root = root

    @classmethod
    def find(
        cls, mounts: tuple[str, ...] = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    ) -> Cgroups:
        """Return the group of the daemon, if it is not the root and may have children."""
        try:
            with open("/proc/self/cgroup") as file:
                group = next((line[3:].strip() for line in file if line.startswith("0::")), "/")
        except OSError:
            return cls(None)
        if group == "/":
            return cls(None)
        for mount in mounts:
            path = mount + group
            if os.path.exists(f"{path}/cgroup.procs") and os.access(path, os.W_OK | os.X_OK):
                return cls(path)
        return cls(None)

    def create(self, name: str) -> str | None:
        """Create the group of an attempt; return None if that is impossible."""
        if self.root is None:
            return None
        path = f"{self.root}/stoker-{name}"
        try:
            os.mkdir(path)
        except FileExistsError:
            pass
        except OSError:
            return None
        return path

    def existing(self, name: str) -> str | None:
        """Return the group of an attempt that an earlier daemon started, if it has one."""
        path = f"{self.root}/stoker-{name}" if self.root else ""
        return path if path and os.path.isdir(path) else None


def kill(path: str) -> bool:
    """Kill everything in a group at once, as far as the kernel can; False when the group is gone.

    Before Linux 5.14 a group can be frozen, so that nothing in it forks while each is killed.
    """
    if _write(f"{path}/cgroup.kill", "1"):
        return True
    frozen = _write(f"{path}/cgroup.freeze", "1")
    for pid in pids(path):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return frozen


def _write(path: str, text: str) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # never create it: it is the kernel's
    except OSError:
        return False
    try:
        os.write(fd, text.encode())
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def pids(path: str) -> list[int]:
    """Return the processes in a group and in groups that the job created below it."""
    members: list[int] = []
    for directory, _, _ in os.walk(path):
        with contextlib.suppress(OSError), open(f"{directory}/cgroup.procs") as file:
            members += [int(line) for line in file]
    return members


def killed_for_memory(path: str) -> bool:
    """Return whether the kernel killed a process of this group for want of memory."""
    with contextlib.suppress(OSError, ValueError), open(f"{path}/memory.events") as file:
        for line in file:
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count) > 0
    return False


def remove(path: str) -> None:
    """Remove an empty group, and those below it."""
    for directory, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(directory)
