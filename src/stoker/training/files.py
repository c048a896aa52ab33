"""The files through which a job and stoker leave each other word. No error leaves this room."""

from __future__ import annotations

import os

RECORD = 128
"""Bytes of the file that tells the last steps; always the same, so that it is never torn."""
LINE = 4096
"""A line below this many bytes is appended in one piece."""


class Held:
    """A file that stays open, as long as it is the one that we have opened."""

    def __init__(self, directory: str, name: str, flags: int = 0) -> None:
        self._directory, self._name, self._flags = directory, name, flags
        self._fd = -1
        self._device = self._inode = 0

    def fd(self) -> int:
        """Its descriptor; raises OSError when it cannot be opened."""
        if self._fd >= 0:
            try:
                now = os.fstat(self._fd)
                # A script that closes all files may have given our number to another one.
                if now.st_ino == self._inode and now.st_dev == self._device and now.st_nlink:
                    return self._fd
            except OSError:
                pass
        self._fd = -1
        fd = _above_standard(open_in(self._directory, self._name, self._flags))
        found = os.fstat(fd)
        self._device, self._inode = found.st_dev, found.st_ino
        self._fd = fd
        return fd


class Files:
    """The directory of one attempt: `stop` is stoker's, `report` and `steps` are ours."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._torn = False
        self._report = Held(directory, "report", os.O_APPEND)
        self._steps = Held(directory, "steps")

    def say(self, line: str) -> bool:
        """Append one line to the report, all of it or (on a full disk) nothing that counts."""
        data = line.encode() + b"\n"
        if self._torn:  # half a line stands there: it must not swallow this one
            data = b"\n" + data
        if len(data) >= LINE:
            return False
        try:
            written = os.write(self._report.fd(), data)
        except (OSError, ValueError):
            return False
        self._torn = 0 < written < len(data) or (self._torn and not written)
        return written == len(data)

    def tell_steps(self, line: str) -> None:
        """Overwrite the last word about steps."""
        data = line.encode().ljust(RECORD - 1) + b"\n"
        if len(data) != RECORD:
            return
        try:
            os.pwrite(self._steps.fd(), data, 0)
        except (OSError, ValueError):
            pass

    def asked(self) -> bool:
        """Whether stoker wants the job to stop."""
        try:
            os.stat(f"{self.directory}/stop")
        except (OSError, ValueError):
            return False
        return True

    def stop_at(self) -> int | None:
        """The epoch before which all processes of the job stop."""
        try:
            with open(f"{self.directory}/stop_at", "rb") as file:
                return int(file.read(64))
        except (OSError, ValueError):
            return None

    def name_stop(self, epoch: int) -> bool:
        """Tell the peers on this machine where all stop; False: they were not told."""
        data = b"%d\n" % epoch
        try:
            file = open_in(self.directory, "stop_at.new", os.O_TRUNC)
            try:
                whole = os.write(file, data) == len(data)
            finally:
                os.close(file)
            if whole:
                os.replace(f"{self.directory}/stop_at.new", f"{self.directory}/stop_at")
        except OSError:
            return False
        return whole


def open_in(directory: str, name: str, flags: int = 0) -> int:
    """Open a file for writing; whoever speaks first makes the directory."""
    path = f"{directory}/{name}"
    flags |= os.O_WRONLY | os.O_CREAT
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        return os.open(path, flags, 0o600)


def _above_standard(fd: int) -> int:
    """Where stdout is closed, what is printed must not go into our file."""
    if fd > 2:
        return fd
    import fcntl

    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)
