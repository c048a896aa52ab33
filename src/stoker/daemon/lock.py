"""Exactly one driver per state."""

from __future__ import annotations

import fcntl
import os


class Locked(Exception):
    """Another daemon or feed has this state."""


class StateLock:
    """An exclusive lock on the state directory, held as long as this object lives."""

    def __init__(self, directory: str) -> None:
        self.path = f"{directory}/lock"
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self.fd, 32, 0).split(b"\n")[0].decode() or "?"
            os.close(self.fd)
            raise Locked(holder) from None
        os.ftruncate(self.fd, 0)
        try:
            os.pwrite(self.fd, b"%d\n" % os.getpid(), 0)
        except OSError as error:
            os.close(self.fd)
            raise OSError(error.errno, error.strerror, self.path) from None

    def release(self) -> None:
        """Let somebody else have it."""
        os.ftruncate(self.fd, 0)
        os.close(self.fd)


def on_shared_file_system(path: str) -> bool:
    """Whether a path is on NFS or the like, where SQLite's log mode is unsafe."""
    best, kind = "", ""
    try:
        with open("/proc/self/mounts") as file:
            for line in file:
                _, mount, type, *_ = line.split(" ")
                at = mount.replace("\\040", " ")
                if (path == at or path.startswith(at.rstrip("/") + "/")) and len(at) >= len(best):
                    best, kind = at, type
    except OSError:
        return False
    shared = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "afs", "9p", "fuse.sshfs", "ceph")
    return kind.startswith(shared)
