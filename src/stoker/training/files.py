"""The files through which a job and stoker leave each other word. No error leaves this room."""

from __future__ import annotations

import os

RECORD = 128
"""Bytes of the file that tells the last steps; always the same, so that it is never torn."""
LINE = 4096
"""A line below this many bytes is appended in one piece."""


class Files:
    """The directory of one attempt: `stop` is stoker's, `report` and `steps` are ours."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._torn = False
        self._steps = -1
        self._inode = (0, 0)

    def say(self, line: str) -> bool:
        """Append one line to the report, all of it or (on a full disk) nothing that counts."""
        data = line.encode() + b"\n"
        if self._torn:  # half a line stands there: it must not swallow this one
            data = b"\n" + data
        if len(data) >= LINE:
            return False
        try:
            file = self._open("report", os.O_APPEND)
        except OSError:
            return False
        try:
            written = os.write(file, data)
            self._torn = 0 < written < len(data) or (self._torn and not written)
            return written == len(data)
        except OSError:
            return False
        finally:
            os.close(file)

    def tell_steps(self, line: str) -> None:
        """Overwrite the last word about steps."""
        data = line.encode().ljust(RECORD - 1) + b"\n"
        if len(data) != RECORD:
            return
        try:
            if not self._still_ours():
                self._steps = self._open("steps")
                found = os.fstat(self._steps)
                self._inode = (found.st_dev, found.st_ino)
            os.pwrite(self._steps, data, 0)
        except OSError:
            self._steps = -1

    def _still_ours(self) -> bool:
        """A script that closes all files may have given our number to another one."""
        if self._steps < 0:
            return False
        try:
            found = os.fstat(self._steps)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._inode

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
            file = self._open("stop_at.new", os.O_TRUNC)
            try:
                whole = os.write(file, data) == len(data)
            finally:
                os.close(file)
            if whole:
                os.replace(f"{self.directory}/stop_at.new", f"{self.directory}/stop_at")
        except OSError:
            return False
        return whole

    def _open(self, name: str, flags: int = 0) -> int:
        path = f"{self.directory}/{name}"
        flags |= os.O_WRONLY | os.O_CREAT
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            return os.open(path, flags, 0o600)
