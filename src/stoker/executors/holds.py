"""Two users' daemons on one box must not both take an idle GPU.

Each user holds a shared lock on a file of its own per GPU; a device is somebody else's
when another user's file is locked. A short exclusive lock on a common file makes
look-and-take one step. The job inherits its hold, so it ends with the job, not with us.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat

COMMON = "/tmp/stoker-gpus"  # noqa: S108 - sticky and checked before use


class Holds:
    """The cross-user reservation of real GPUs."""

    def __init__(self, directory: str = COMMON) -> None:
        self.directory = directory
        self.uid = os.getuid()
        self._open: dict[tuple[int, int], list[int]] = {}

    def path(self, uuid: str) -> str:
        """This user's hold file for a GPU."""
        return f"{self.directory}/{uuid}.{self.uid}"

    def take(self, key: tuple[int, int], uuids: tuple[str, ...]) -> str | None:
        """Hold these GPUs for an attempt; None, or the sentence that says who has one."""
        if not uuids or not self._usable():
            return None
        taken: list[int] = []
        for uuid in sorted(uuids):
            with self._alone(uuid):
                owner = self._other_owner(uuid)
                if owner is not None:
                    for fd in taken:
                        os.close(fd)
                    return f"GPU {uuid} is held by the stoker of {owner}"
                fd = _opened(self.path(uuid), os.O_RDWR, 0o644)
                fcntl.flock(fd, fcntl.LOCK_SH)
                taken.append(fd)
        self._open[key] = taken
        return None

    def holder(self, uuid: str) -> str | None:
        """The other user whose stoker holds a GPU now, if any."""
        return self._other_owner(uuid) if os.path.isdir(self.directory) else None

    def drop(self, key: tuple[int, int]) -> None:
        """Our side of an attempt's hold ends; its processes may still have theirs."""
        for fd in self._open.pop(key, ()):
            os.close(fd)

    def paths(self, uuids: tuple[str, ...]) -> list[str]:
        """The files that an attempt's process locks and inherits."""
        return [self.path(uuid) for uuid in sorted(uuids)] if self._usable() else []

    def _usable(self) -> bool:
        """A directory that all users share and nobody can play tricks in."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.directory)
            os.chmod(self.directory, 0o1777)  # noqa: S103 - shared by all users, like /tmp
        found = os.lstat(self.directory)
        return stat.S_ISDIR(found.st_mode) and bool(found.st_mode & stat.S_ISVTX)

    @contextlib.contextmanager
    def _alone(self, uuid: str):  # type: ignore[no-untyped-def]
        fd = _opened(f"{self.directory}/{uuid}", os.O_RDONLY, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _other_owner(self, uuid: str) -> str | None:
        for name in os.listdir(self.directory):
            base, _, uid = name.rpartition(".")
            if base != uuid or not uid.isdigit() or int(uid) == self.uid:
                continue
            with contextlib.suppress(OSError):
                fd = os.open(f"{self.directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    import pwd

                    with contextlib.suppress(KeyError):
                        return pwd.getpwuid(int(uid)).pw_name
                    return uid
                finally:
                    os.close(fd)
        return None


def _opened(path: str, flags: int, mode: int) -> int:
    """Open a file that all users can read, making it if need be.

    Not with a plain O_CREAT: where fs.protected_regular is set, that is refused for a file
    of another user in a sticky directory. And whatever our umask is, others must be able
    to see whether it is locked.
    """
    while True:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
        with contextlib.suppress(FileExistsError):
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            os.fchmod(fd, mode)
            return fd
