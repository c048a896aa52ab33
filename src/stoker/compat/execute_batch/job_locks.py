"""JobLocks: lock on a job name from before its submission until its end.

A lock is a file `job_results/.NAME.running` with the identity of its process. If that process is
dead, its job may still run: the daemon is asked.
"""

from __future__ import annotations

import os
from contextlib import suppress

from stoker import places, wire
from stoker.client.errors import StokerError
from stoker.compat.execute_batch.lines import RESULTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.client.client import Client

PROGRAMS = ("execute_batch", "execute_remote")
"""Commands that share job names."""
MAX_NAME_BYTES = 200
"""Longer names are replaced by a hash in the file name."""
MAX_JOBS = 10_000
"""Jobs searched for an unfinished one of the same name."""
ANOTHER_PROCESS = "another"
"""Holder of a lock that is a living process."""


class JobLocks:
    """Locks of this process in the current directory."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.held: set[str] = set()
        self._identity = _identity(os.getpid())

    def acquire(self, name: str) -> str | None:
        """Lock a name; return None, or the holder: ANOTHER_PROCESS or a job label."""
        if name in self.held:
            return None
        try:
            lock = _lock_directory()
            try:
                return self._acquire(name)
            finally:
                os.close(lock)
        except OSError as error:
            raise StokerError(f"./{RESULTS} cannot be written: {error.strerror}.") from None

    def _acquire(self, name: str) -> str | None:
        path = _lock_path(name)
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                before = file.read()
        except FileNotFoundError:
            pass
        else:
            if _is_alive(before):
                return ANOTHER_PROCESS
            left = self._unfinished_job(name)
            if left is not None:
                return left
            os.unlink(path)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return ANOTHER_PROCESS  # decides where directories cannot be locked
        os.write(fd, self._identity.encode())
        os.close(fd)
        self.held.add(name)
        return None

    def release(self, name: str) -> None:
        """Release a lock."""
        if name in self.held:
            self.held.remove(name)
            with suppress(OSError):  # it may have been removed
                os.unlink(_lock_path(name))

    def _unfinished_job(self, name: str) -> str | None:
        """Return the label of an unfinished job of this name and directory, or None."""
        directory = os.path.realpath(".")
        for program in PROGRAMS:
            for view in self.client.jobs(client=program, limit=MAX_JOBS)["jobs"]:
                same = view["name"] == name and os.path.realpath(view["directory"]) == directory
                if same and view["state"] not in wire.FINISHED:
                    return str(view["label"])
        return None


def _lock_path(name: str) -> str:
    short = name if len(os.fsencode(name)) <= MAX_NAME_BYTES else places.digest(name)
    return os.path.join(RESULTS, f".{short}.running")


def _lock_directory() -> int:
    """Lock the results directory; return the descriptor that holds the lock."""
    import fcntl

    fd = os.open(RESULTS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError):  # some network file systems cannot lock directories
        fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def _identity(pid: int) -> str:
    """Return a unique identity of a process: host, boot id, pid and start time."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{places.machine_id()} {boot} {pid} {_start_time(pid)}\n"


def _start_time(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[19]


def _is_alive(claim: str) -> bool:
    """Return True if the process of a lock lives; assumed for other hosts."""
    machine, _, owner = claim.partition(" ")
    words = owner.split()
    if len(words) != 3 or not words[1].isdecimal():
        return False
    if machine != places.machine_id():
        return True
    try:
        return _identity(int(words[1])) == claim
    except OSError:
        return False
