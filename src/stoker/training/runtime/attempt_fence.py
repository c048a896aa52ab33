"""AttemptFence: only the newest attempt of a job writes checkpoints.

An attempt whose node was given up may still run there when the next one has resumed elsewhere. So
every attempt marks the directories of its checkpoints, and an older one that finds a newer mark
stops before it saves.

The mark is a file whose size is the number of the newest attempt plus one: an attempt writes one
byte at the offset that is its number. So the size never falls, whatever the order of the writes,
without a lock. The file is opened for every check, because a network file system compares an open
file with the server, but may answer a `stat` from its cache.
"""

from __future__ import annotations

import os
from stat import S_ISREG

from stoker.training.runtime.checkpoints import is_trusted

MARK = ".stoker-attempts"
FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class AttemptFence:
    """Marks directories for one attempt, and reads the marks of others. Nothing here raises."""

    def __init__(self, job: str, attempt: int) -> None:
        self.attempt = attempt
        self._name = f"{MARK}-{job}"
        """The name of the mark: a directory may be used by several jobs."""
        self._marks: list[str] = []

    def mark(self, directory: str) -> None:
        """Mark a directory for this attempt, once, if it exists."""
        path = f"{directory}/{self._name}"
        if path not in self._marks and _write(path, self.attempt):
            self._marks.append(path)

    def newer_attempt(self) -> int | None:
        """Return the number of the newest attempt by the marks, if it is not this one."""
        newest = max([self.attempt, *map(self._read, self._marks)])
        return newest if newest > self.attempt else None

    def _read(self, path: str) -> int:
        """Return the newest attempt by a mark; one that was deleted is written again."""
        try:
            fd = os.open(path, os.O_RDONLY | FLAGS)
            try:
                status = os.fstat(fd)
            finally:
                os.close(fd)
        except (OSError, ValueError):
            _write(path, self.attempt)
            return self.attempt
        is_mark = S_ISREG(status.st_mode) and is_trusted(path)
        return status.st_size - 1 if is_mark else self.attempt


def _write(path: str, attempt: int) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | FLAGS, 0o600)
        try:
            os.lseek(fd, attempt, os.SEEK_SET)
            return os.write(fd, b"\n") == 1
        finally:
            os.close(fd)
    except (OSError, ValueError, OverflowError):
        return False
