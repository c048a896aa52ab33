"""StateLock: one daemon per state directory."""

from __future__ import annotations

import fcntl
import os

from stoker import places


class Locked(Exception):
    """Another daemon or feed holds the lock; the text is its pid."""


class StateLock:
    """An exclusive lock on the state directory, held as long as this object lives."""

    def __init__(self, directory: str) -> None:
        self.path = f"{directory}/lock"
        self.fd = self._acquire()

    def _acquire(self) -> int:
        while True:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if places.leads_to(self.path, os.fstat(fd)):  # else it was just deleted
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
                    return fd
            except BlockingIOError:
                holder = os.pread(fd, 32, 0).split(b"\n")[0].decode() or "?"
                os.close(fd)
                raise Locked(holder) from None
            except OSError as error:
                os.close(fd)
                raise OSError(error.errno, error.strerror, self.path) from None
            os.close(fd)

    @property
    def is_in_place(self) -> bool:
        """Whether the locked file is the one that another daemon would lock."""
        return places.leads_to(self.path, os.fstat(self.fd))

    def renew(self) -> None:
        """Lock the file again after it was deleted; raise Locked if another daemon has."""
        fd = self._acquire()
        os.close(self.fd)
        self.fd = fd

    def release(self) -> None:
        """Give the lock up."""
        os.ftruncate(self.fd, 0)
        os.close(self.fd)


def on_shared_file_system(path: str) -> bool:
    """Return whether a path is on a network file system, where SQLite's WAL mode is unsafe."""
    longest, file_system = "", ""
    try:
        with open("/proc/self/mounts") as file:
            for line in file:
                _, mount, type, *_ = line.split(" ")
                point = mount.replace("\\040", " ")
                is_below = path == point or path.startswith(point.rstrip("/") + "/")
                if is_below and len(point) >= len(longest):
                    longest, file_system = point, type
    except OSError:
        return False
    shared = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "afs", "9p", "fuse.sshfs", "ceph")
    return file_system.startswith(shared)
