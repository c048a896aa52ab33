"""LogMirror: copies the output of an attempt on another node, each byte once.

The size of a copy shows how much has arrived. A note on disk has what a later daemon cannot find
out: how long the files were before the attempt, and when its directory was read.
"""

from __future__ import annotations

import contextlib
import os

from msgspec import Struct

from stoker.executors.agent.session.framing import ProtocolError, number
from stoker.executors.linux.log_file import open_log

OUT, ERR, REPORT, CUT, TAR = "out", "err", "report", "cut-", "tar"
KINDS = frozenset((TAR, *(f"{cut}{kind}" for cut in ("", CUT) for kind in (OUT, ERR, REPORT))))
LONGEST_HEADING = 96
"""Bytes of the line in front of a piece."""
MOST_PIECES = len(KINDS)
"""Pieces of one attempt in one answer."""


class Piece(Struct, frozen=True):
    """A part of an attempt's output or report, or a tar archive of its results."""

    key: str
    what: str
    offset: int
    data: bytes


def pieces(bulk: bytes) -> list[Piece]:
    """Split bulk data into pieces: a heading `KEY WHAT OFFSET LENGTH`, then that many bytes."""
    received: dict[tuple[str, str], Piece] = {}
    at = 0
    while at < len(bulk):
        end = bulk.find(b"\n", at, at + LONGEST_HEADING)
        words = bulk[at : max(end, at)].decode("ascii", "replace").split(" ")
        if len(words) != 4 or words[1] not in KINDS or (words[0], words[1]) in received:
            raise ProtocolError(f"a piece with the header {bulk[at : at + 40]!r}")
        key, what, offset, size = words
        start = end + 1
        at = start + number(size, len(bulk) - start)
        received[key, what] = Piece(key, what, number(offset), bulk[start:at])
    return list(received.values())


class LogMirror(Struct):
    """Copies of one attempt's output."""

    out: str
    err: str | None
    note: str
    """The path of the note."""
    out_base: int = 0
    err_base: int = 0
    """Bytes that the files had before the attempt wrote to them."""
    at_out: int = 0
    at_err: int = 0
    """Bytes of each that have arrived."""

    def open(self, umask: int) -> None:
        """Create the files as the attempt itself would; raise OSError if that is impossible."""
        before = os.umask(umask)
        try:
            for path in filter(None, (self.out, self.err)):
                os.close(open_log(path, 0o666))
        finally:
            os.umask(before)
        self.out_base, self.err_base = _size(self.out), _size(self.err)

    def write_note(self, read_at: float) -> None:
        """Write the note, with the time at which the attempt's directory was read."""
        with open(self.note, "w") as file:
            file.write(f"{self.out_base} {self.err_base} {read_at!r}")

    def resume(self) -> float | None:
        """Continue the copies of an earlier daemon; return when the directory was read, if known.

        Without a note, the files are those of the attempt alone, as they are by default.
        """
        read_at = None
        with contextlib.suppress(OSError, ValueError):
            with open(self.note) as file:
                out, err, *times = file.read().split()
            self.out_base, self.err_base = int(out), int(err)
            read_at = float(times[0]) if times else None
        self.at_out = max(_size(self.out) - self.out_base, 0)
        self.at_err = max(_size(self.err) - self.err_base, 0)
        return read_at

    def take(self, piece: Piece) -> None:
        """Append what is new in a piece; pieces may overlap."""
        if piece.what.startswith(CUT):
            self._truncate(piece.what.removeprefix(CUT))
            return
        have = self.at_err if piece.what == ERR else self.at_out
        if piece.offset <= have:
            self._add(piece.what, piece.data[have - piece.offset :])

    def _add(self, stream: str, data: bytes) -> None:
        path = self.err if stream == ERR else self.out
        if path is None or not data:
            return
        fd = open_log(path, 0o600)
        try:
            unwritten = memoryview(data)
            while unwritten:
                written = os.write(fd, unwritten)
                unwritten = unwritten[written:]
                if stream == ERR:
                    self.at_err += written
                else:
                    self.at_out += written
        finally:
            os.close(fd)

    def _truncate(self, stream: str) -> None:
        """Truncate a copy like the attempt did its log, unless other processes wrote to it."""
        path, base = (self.err, self.err_base) if stream == ERR else (self.out, self.out_base)
        have = self.at_err if stream == ERR else self.at_out
        if path is not None and _size(path) == base + have:
            os.truncate(path, base)
        if stream == ERR:
            self.at_err = 0
        else:
            self.at_out = 0

    @property
    def offsets(self) -> tuple[str, str]:
        """The positions in stdout and stderr from which the agent continues."""
        return str(self.at_out), str(self.at_err)

    def forget(self) -> None:
        """Delete the note of an attempt that will not be recovered."""
        with contextlib.suppress(OSError):
            os.unlink(self.note)


def _size(path: str | None) -> int:
    try:
        return os.stat(path).st_size if path else 0
    except OSError:
        return 0
