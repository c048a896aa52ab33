"""Files of a report directory. No function here raises, except for HeldFile.fd."""

from __future__ import annotations

import os

STEPS_BYTES = 128
"""Size of the `steps` file; constant, so that it is always written as a whole."""
MAX_LINE = 4096
"""Lines below this many bytes are appended atomically."""


class HeldFile:
    """A file that stays open, and is reopened if the script has closed it."""

    def __init__(self, directory: str, name: str, flags: int = 0) -> None:
        self._directory, self._name, self._flags = directory, name, flags
        self._fd = -1
        self._device = self._inode = 0

    def fd(self) -> int:
        """Return its descriptor; raise OSError if it cannot be opened."""
        if self._fd >= 0:
            try:
                status = os.fstat(self._fd)
                # A script that closes all files may have reused this number for another one.
                is_same = status.st_ino == self._inode and status.st_dev == self._device
                if is_same and status.st_nlink:
                    return self._fd
            except OSError:
                pass
        self._fd = -1
        fd = _above_standard(open_in(self._directory, self._name, self._flags))
        status = os.fstat(fd)
        self._device, self._inode = status.st_dev, status.st_ino
        self._fd = fd
        return fd


class Files:
    """The report directory of one attempt: stoker writes `stop`, the library the others."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._has_partial_line = False
        self._report = HeldFile(directory, "report", os.O_APPEND)
        self._steps = HeldFile(directory, "steps")

    def append_line(self, line: str) -> bool:
        """Append a line to the report; return False if it is not written completely."""
        data = line.encode() + b"\n"
        if self._has_partial_line:  # end the incomplete line first
            data = b"\n" + data
        if len(data) >= MAX_LINE:
            return False
        try:
            written = os.write(self._report.fd(), data)
        except (OSError, ValueError):
            return False
        self._has_partial_line = 0 < written < len(data) or (self._has_partial_line and not written)
        return written == len(data)

    def write_steps(self, line: str) -> None:
        """Overwrite the `steps` file."""
        data = line.encode().ljust(STEPS_BYTES - 1) + b"\n"
        if len(data) != STEPS_BYTES:
            return
        try:
            os.pwrite(self._steps.fd(), data, 0)
        except (OSError, ValueError):
            pass

    def is_stop_requested(self) -> bool:
        """Return True if stoker requests a stop."""
        try:
            os.stat(f"{self.directory}/stop")
        except (OSError, ValueError):
            return False
        return True

    def read_stop_epoch(self) -> int | None:
        """Return the epoch before which all processes of the job stop, if one is announced."""
        try:
            with open(f"{self.directory}/stop_at", "rb") as file:
                return int(file.read(64))
        except (OSError, ValueError):
            return None

    def write_stop_epoch(self, epoch: int) -> bool:
        """Announce the stop epoch to the peers on this node; return False on failure."""
        data = b"%d\n" % epoch
        try:
            file = open_in(self.directory, "stop_at.new", os.O_TRUNC)
            try:
                is_written = os.write(file, data) == len(data)
            finally:
                os.close(file)
            if is_written:
                os.replace(f"{self.directory}/stop_at.new", f"{self.directory}/stop_at")
        except OSError:
            return False
        return is_written


def open_in(directory: str, name: str, flags: int = 0) -> int:
    """Open a file for writing; create the directory if it is missing."""
    path = f"{directory}/{name}"
    flags |= os.O_WRONLY | os.O_CREAT
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        return os.open(path, flags, 0o600)


def _above_standard(fd: int) -> int:
    """Return a descriptor above 2: with stdout closed, prints would go into the file."""
    if fd > 2:
        return fd
    import fcntl

    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)
