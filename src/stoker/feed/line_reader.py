"""Commands from a file, a pipe or a terminal, never more of them in memory than needed."""

from __future__ import annotations

import os
import stat
from collections import deque

CHUNK = 1 << 16
LONGEST = 1 << 20
AT_ONCE = 8 << 20
"""Bytes of commands that are kept or handed on together."""
COUNTED = 64 << 20
"""Files up to this size are counted beforehand, so that progress has an end to show."""
CHUNKS_AT_ONCE = 64
"""A file may hold no command for very long; signals are heard in between."""
CHUNKS_AT_END = (16 << 20) // CHUNK
"""How much is read only to say how many commands were not run: a moment's work."""


class Lines:
    """Reads one descriptor, line by line, without ever blocking its owner."""

    def __init__(self, fd: int, *, joined: bool = False) -> None:
        self.fd = fd
        self.joined = joined
        """Whether a backslash at its end makes a line go on in the next one."""
        self.ended = False
        self.number = 0
        self.left_out: list[tuple[int, str]] = []
        """Lines that cannot be commands: their numbers, and why not."""
        self._part = b""
        self._skipping = False
        self._begun: list[bytes] = []
        self._begun_at = self._begun_size = 0
        self._ready: deque[str] = deque()
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
            self._end()
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

    def _end(self) -> None:
        self.ended = True
        if self._part and not self._skipping:
            self._add(self._part)
        self._part = b""
        if self._begun:
            self._take_in_whole()

    def _add(self, line: bytes) -> None:
        self.number += 1
        if not self.joined:
            self._take_in(line, self.number)
            return
        if not self._begun:
            if not _is_command(line):
                return  # a comment does not go on, whatever it ends in
            self._begun_at, self._begun_size = self.number, 0
        line = line.rstrip(b"\r")
        if self._begun_size <= LONGEST:  # beyond that it is left out anyway
            self._begun.append(line)
            self._begun_size += len(line) + 1
        if not goes_on(line):
            self._take_in_whole()

    def _take_in_whole(self) -> None:
        self._take_in(b"\n".join(self._begun), self._begun_at)
        self._begun = []

    def _take_in(self, line: bytes, number: int) -> None:
        if not _is_command(line):
            return
        if len(line) > LONGEST:
            self.left_out.append((number, "it is longer than 1 MiB"))
        elif b"\0" in line:
            self.left_out.append((number, "it holds a NUL byte"))
        else:
            try:
                self._ready.append(line.rstrip(b"\r").decode())
                self._size += len(self._ready[-1])
            except UnicodeDecodeError:
                self.left_out.append((number, "it is not valid UTF-8"))

    def take(self, most: int) -> list[str]:
        """Up to so many commands, and not too many bytes; none does not mean that it is done."""
        if self.regular:
            for _ in range(CHUNKS_AT_ONCE):
                if self.ended or self.full(most):
                    break
                self.read()
        taken: list[str] = []
        size = 0
        while self._ready and len(taken) < most and size < AT_ONCE:
            taken.append(self._ready.popleft())
            size += len(taken[-1])
        self._size -= size
        return taken

    def rest(self) -> int | None:
        """Drop all that is left and say how much it was; None where that would take long."""
        count = 0
        for _ in range(CHUNKS_AT_END):
            count += len(self._ready)
            self._ready.clear()
            self._size = 0
            if self.ended or not self.regular:
                return count
            self.read()
        return None

    def put_back(self, line: str) -> None:
        """It was taken, but could not be used yet."""
        self._ready.appendleft(line)
        self._size += len(line)

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

    @property
    def at_hand(self) -> bool:
        """Whether taking may give something at once."""
        return bool(self._ready) or (self.regular and not self.ended)

    def full(self, most: int) -> bool:
        """Whether enough is read for now."""
        return len(self._ready) >= most or self._size >= AT_ONCE


def goes_on(line: bytes) -> bool:
    """Whether a shell would read on in the next line: an odd number of backslashes at the end."""
    return (len(line) - len(line.rstrip(b"\\"))) % 2 == 1


def _is_command(line: bytes) -> bool:
    line = line.strip()
    return bool(line) and not line.startswith(b"#")
