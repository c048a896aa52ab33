"""Commands from a file, a pipe or a terminal, never more of them in memory than needed."""

from __future__ import annotations

import os
import stat

CHUNK = 1 << 16
LONGEST = 1 << 20
AT_ONCE = 8 << 20
"""Bytes of commands that are kept or handed on together."""
COUNTED = 64 << 20
"""Files up to this size are counted beforehand, so that progress has an end to show."""


class Lines:
    """Reads one descriptor, line by line, without ever blocking its owner."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.ended = False
        self.number = 0
        self.left_out: list[tuple[int, str]] = []
        """Lines that cannot be commands: their numbers, and why not."""
        self._part = b""
        self._skipping = False
        self._ready: list[str] = []
        self._size = 0
        self.regular = stat.S_ISREG(os.fstat(fd).st_mode)
        """Regular files are always readable and cannot be watched."""

    def expected(self) -> int | None:
        """How many commands there will be, where that can be known."""
        if not self.regular or os.fstat(self.fd).st_size > COUNTED:
            return None
        at = os.lseek(self.fd, 0, os.SEEK_CUR)
        count, part = 0, b""
        while chunk := os.pread(self.fd, CHUNK, at):
            at += len(chunk)
            *whole, part = (part + chunk).split(b"\n")
            count += sum(map(_is_command, whole))
            if len(part) > LONGEST:
                part = part.lstrip()[:1]  # its first letter says what it is
        return count + _is_command(part)

    def read(self) -> None:
        """Take in what is there; call when readable (a regular file always is)."""
        if self.ended:
            return
        try:
            chunk = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return
        except InterruptedError:
            return
        if not chunk:
            self.ended = True
            if self._part and not self._skipping:
                self._add(self._part)
            self._part = b""
            return
        *whole, self._part = (self._part + chunk).split(b"\n")
        for line in whole:
            if self._skipping:
                self._skipping = False
                continue
            self._add(line)
        if self._skipping:
            self._part = b""
        elif len(self._part) > LONGEST:
            # No command is a megabyte long: forget it up to its end, and say so.
            self._add(self._part)
            self._part, self._skipping = b"", True

    def _add(self, line: bytes) -> None:
        self.number += 1
        if not _is_command(line):
            return
        if len(line) > LONGEST:
            self.left_out.append((self.number, "it is longer than 1 MiB"))
        elif b"\0" in line:
            self.left_out.append((self.number, "it holds a NUL byte"))
        else:
            try:
                self._ready.append(line.rstrip(b"\r").decode())
                self._size += len(line)
            except UnicodeDecodeError:
                self.left_out.append((self.number, "it is not valid UTF-8"))

    def take(self, most: int) -> list[str]:
        """Up to so many commands that have been read, and not too many bytes."""
        if self.regular:
            while not self.ended and len(self._ready) < most and self._size < AT_ONCE:
                self.read()
        if self._size < AT_ONCE:
            count = max(most, 0)
        else:
            count = size = 0
            while count < min(most, len(self._ready)) and (size < AT_ONCE or not count):
                size += len(self._ready[count])
                count += 1
        taken, self._ready = self._ready[:count], self._ready[count:]
        self._size = sum(map(len, self._ready))
        return taken

    def excuses(self) -> list[tuple[int, str]]:
        """The lines left out since the last time: their numbers, and why."""
        found, self.left_out = self.left_out, []
        return found

    @property
    def done(self) -> bool:
        """Whether there will be no more."""
        return self.ended and not self._ready

    @property
    def waiting(self) -> int:
        """How many are read but not taken."""
        return len(self._ready)

    def full(self, most: int) -> bool:
        """Whether enough is read for now."""
        return len(self._ready) >= most or self._size >= AT_ONCE


def _is_command(line: bytes) -> bool:
    line = line.strip()
    return bool(line) and not line.startswith(b"#")
