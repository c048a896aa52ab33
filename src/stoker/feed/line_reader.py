"""LineReader: commands from a file, a pipe or a terminal, in bounded memory."""

from __future__ import annotations

import os
import stat
from collections import deque

CHUNK_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 20
MAX_BATCH_BYTES = 8 << 20
"""Of commands that are kept in memory or submitted together."""
MAX_COUNTED_BYTES = 64 << 20
"""Lines of files up to this size are counted first, so that progress has a total."""
MAX_CHUNKS_PER_TAKE = 64
"""A file may have no command for many chunks; signals are handled in between."""
MAX_CHUNKS_AT_END = (16 << 20) // CHUNK_BYTES
"""Read at limit to count the commands that were not run."""


class LineReader:
    """Reads one descriptor line by line, without blocking."""

    def __init__(self, fd: int, *, joins_lines: bool = False) -> None:
        self.fd = fd
        self.joins_lines = joins_lines
        """Whether a backslash at the end of a line continues it on the next."""
        self.is_at_end = False
        self.line_number = 0
        self.skipped: list[tuple[int, str]] = []
        """Lines that cannot be commands: their numbers, and why not."""
        self._part = b""
        self._skipping = False
        self._continued: list[bytes] = []
        self._continued_at = self._continued_bytes = 0
        self._ready: deque[str] = deque()
        self._buffered_bytes = 0
        self.is_regular = stat.S_ISREG(os.fstat(fd).st_mode)
        """A regular file is always readable, and epoll rejects it."""

    def expected(self) -> int | None:
        """Return the number of commands, if it can be known."""
        if not self.is_regular or os.fstat(self.fd).st_size > MAX_COUNTED_BYTES:
            return None
        at = os.lseek(self.fd, 0, os.SEEK_CUR)
        count, part = 0, b""
        while chunk := os.pread(self.fd, CHUNK_BYTES, at):
            at += len(chunk)
            *complete, part = (part + chunk).split(b"\n")
            count += sum(map(_is_command, complete))
            if len(part) > MAX_LINE_BYTES:
                part = part.lstrip()[:1]  # its first character decides
        return count + _is_command(part)

    def read(self) -> None:
        """Read what is available; call when readable (a regular file always is)."""
        if self.is_at_end:
            return
        try:
            chunk = os.read(self.fd, CHUNK_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        if not chunk:
            self._end()
            return
        *complete, self._part = (self._part + chunk).split(b"\n")
        for line in complete:
            if self._skipping:
                self._skipping = False
                continue
            self._add(line)
        if self._skipping:
            self._part = b""
        elif len(self._part) > MAX_LINE_BYTES:
            # No command is that long: skip it up to its end, and report it.
            self._add(self._part)
            self._part, self._skipping = b"", True

    def _end(self) -> None:
        self.is_at_end = True
        if self._part and not self._skipping:
            self._add(self._part)
        self._part = b""
        if self._continued:
            self._finish_continued()

    def _add(self, line: bytes) -> None:
        self.line_number += 1
        if not self.joins_lines:
            self._append(line, self.line_number)
            return
        if not self._continued:
            if not _is_command(line):
                return  # a comment is not continued
            self._continued_at, self._continued_bytes = self.line_number, 0
        line = line.rstrip(b"\r")
        if self._continued_bytes <= MAX_LINE_BYTES:  # beyond that it is skipped anyway
            self._continued.append(line)
            self._continued_bytes += len(line) + 1
        if not is_continued(line):
            self._finish_continued()

    def _finish_continued(self) -> None:
        self._append(b"\n".join(self._continued), self._continued_at)
        self._continued = []

    def _append(self, line: bytes, number: int) -> None:
        if not _is_command(line):
            return
        if len(line) > MAX_LINE_BYTES:
            self.skipped.append((number, "it is longer than 1 MiB"))
        elif b"\0" in line:
            self.skipped.append((number, "it holds a NUL byte"))
        else:
            try:
                self._ready.append(line.rstrip(b"\r").decode())
                self._buffered_bytes += len(self._ready[-1])
            except UnicodeDecodeError:
                self.skipped.append((number, "it is not valid UTF-8"))

    def take(self, limit: int) -> list[str]:
        """Return up to `limit` commands of bounded size; an empty list is not the end of input."""
        if self.is_regular:
            for _ in range(MAX_CHUNKS_PER_TAKE):
                if self.is_at_end or self.is_full(limit):
                    break
                self.read()
        taken: list[str] = []
        size = 0
        while self._ready and len(taken) < limit and size < MAX_BATCH_BYTES:
            taken.append(self._ready.popleft())
            size += len(taken[-1])
        self._buffered_bytes -= size
        return taken

    def drop_remaining(self) -> int | None:
        """Drop and count the remaining commands; None if counting would take long."""
        count = 0
        for _ in range(MAX_CHUNKS_AT_END):
            count += len(self._ready)
            self._ready.clear()
            self._buffered_bytes = 0
            if self.is_at_end or not self.is_regular:
                return count
            self.read()
        return None

    def put_back(self, line: str) -> None:
        """Return a command that was taken but could not be submitted yet."""
        self._ready.appendleft(line)
        self._buffered_bytes += len(line)

    def take_skipped(self) -> list[tuple[int, str]]:
        """Return the lines skipped since the last call: their numbers, and the reasons."""
        skipped, self.skipped = self.skipped, []
        return skipped

    @property
    def is_done(self) -> bool:
        """Whether all commands were taken."""
        return self.is_at_end and not self._ready

    @property
    def buffered(self) -> int:
        """Number of commands that are read but not taken."""
        return len(self._ready)

    @property
    def may_take(self) -> bool:
        """Whether `take` may return something now."""
        return bool(self._ready) or (self.is_regular and not self.is_at_end)

    def is_full(self, limit: int) -> bool:
        """Return whether `limit` commands, or enough bytes, are in memory."""
        return len(self._ready) >= limit or self._buffered_bytes >= MAX_BATCH_BYTES


def is_continued(line: bytes) -> bool:
    """Return whether a shell would continue the line: an odd number of backslashes ends it."""
    return (len(line) - len(line.rstrip(b"\\"))) % 2 == 1


def _is_command(line: bytes) -> bool:
    line = line.strip()
    return bool(line) and not line.startswith(b"#")
