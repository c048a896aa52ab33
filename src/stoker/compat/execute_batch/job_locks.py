"""Who runs a job: its name is taken before it is submitted, and given back when it is over.

A name is taken by a file `job_results/.NAME.running` that says which process has it. If that is
dead, its job may run on all the same: the daemon knows.
"""

from __future__ import annotations

import os
from contextlib import suppress

from stoker import places
from stoker.client.errors import StokerError
from stoker.compat.execute_batch.lines import FINISHED, RESULTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.client.client import Client

DOORS = ("execute_batch", "execute_remote")
"""The commands that share these names."""
LONGEST = 200
"""Bytes of a name that leave room for ours."""
MOST = 10_000
"""Jobs that are looked through."""
ANOTHER = "another"
"""Who has a name, when that is a process that lives."""


class JobLocks:
    """The names that this process has taken in the current directory."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.mine: set[str] = set()
        self._me = _identity(os.getpid())

    def take(self, name: str) -> str | None:
        """Take a name; who has it, if somebody does: ANOTHER, or the label of a job."""
        if name in self.mine:
            return None
        try:
            lock = _lock()
            try:
                return self._take(name)
            finally:
                os.close(lock)
        except OSError as error:
            raise StokerError(f"./{RESULTS} cannot be written: {error.strerror}.") from None

    def _take(self, name: str) -> str | None:
        path = _path(name)
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                before = file.read()
        except FileNotFoundError:
            pass
        else:
            if _lives(before):
                return ANOTHER
            left = self._left_behind(name)
            if left is not None:
                return left
            os.unlink(path)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return ANOTHER  # where directories cannot be locked, this decides
        os.write(fd, self._me.encode())
        os.close(fd)
        self.mine.add(name)
        return None

    def release(self, name: str) -> None:
        """Give a name back."""
        if name in self.mine:
            self.mine.remove(name)
            with suppress(OSError):  # somebody may have tidied up
                os.unlink(_path(name))

    def _left_behind(self, name: str) -> str | None:
        """The job of this name in this directory that has not ended, if there is one."""
        here = os.path.realpath(".")
        for door in DOORS:
            for view in self.client.jobs(client=door, limit=MOST)["jobs"]:
                same = view["name"] == name and os.path.realpath(view["directory"]) == here
                if same and view["state"] not in FINISHED:
                    return str(view["label"])
        return None


def _path(name: str) -> str:
    short = name if len(os.fsencode(name)) <= LONGEST else places.digest(name)
    return os.path.join(RESULTS, f".{short}.running")


def _lock() -> int:
    """Be alone with the names of this directory, as long as what is returned is open."""
    import fcntl

    fd = os.open(RESULTS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError):  # some file systems over the network lock no directories
        fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def _identity(pid: int) -> str:
    """A process as there is no other: its machine, when that was started, its id and its start."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{places.machine_id()} {boot} {pid} {_begin(pid)}\n"


def _begin(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[19]


def _lives(claim: str) -> bool:
    """Whether a process has a name still. Of other machines nobody can tell: it has."""
    machine, _, rest = claim.partition(" ")
    words = rest.split()
    if len(words) != 3 or not words[1].isdecimal():
        return False
    if machine != places.machine_id():
        return True
    try:
        return _identity(int(words[1])) == claim
    except OSError:
        return False
