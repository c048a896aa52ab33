"""The logs of attempts on another machine, copied here as they grow: no byte twice, none lost.

How far we are is told by the copy itself, so that nothing need be remembered.
"""

from __future__ import annotations

import os

from msgspec import Struct


class Mirror(Struct):
    """Copies of one attempt's output."""

    out: str
    err: str | None
    out_base: int = 0
    """What was in the file before this attempt wrote to it."""
    err_base: int = 0
    at_out: int = 0
    at_err: int = 0
    """How many bytes of each we have."""

    def open(self, umask: int) -> None:
        """Make the files, as the attempt itself would have; raises OSError where it could not."""
        before = os.umask(umask)
        try:
            for path in filter(None, (self.out, self.err)):
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                os.close(os.open(path, flags, 0o666))
        finally:
            os.umask(before)
        self.out_base, self.err_base = _size(self.out), _size(self.err)

    def resume(self) -> None:
        """Go on where an earlier driver stopped: attempts have files of their own by default."""
        self.at_out = max(_size(self.out) - self.out_base, 0)
        self.at_err = max(_size(self.err) - self.err_base, 0)

    def add(self, stream: str, data: bytes) -> None:
        """The next piece of stdout (`out`) or stderr (`err`)."""
        path = self.err if stream == "err" else self.out
        if path is None:
            return
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            rest = memoryview(data)
            while rest:
                written = os.write(fd, rest)
                rest = rest[written:]
                if stream == "err":
                    self.at_err += written
                else:
                    self.at_out += written
        finally:
            os.close(fd)

    @property
    def offsets(self) -> tuple[str, str]:
        """Where the agent should go on, in stdout and stderr."""
        return str(self.at_out), str(self.at_err)


def _size(path: str | None) -> int:
    try:
        return os.stat(path).st_size if path else 0
    except OSError:
        return 0


def pieces(bulk: bytes) -> list[tuple[str, str, bytes]]:
    """Take `KEY WHAT LENGTH` headings and what follows each apart."""
    found = []
    at = 0
    while at < len(bulk):
        end = bulk.index(b"\n", at)
        key, what, size = bulk[at:end].decode().split(" ")
        at = end + 1 + int(size)
        found.append((key, what, bulk[end + 1 : at]))
    return found
