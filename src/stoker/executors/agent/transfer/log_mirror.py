"""The logs of attempts on another machine, copied here as they grow: no byte twice, none lost.

How far we are is told by the copy itself, so that nothing need be remembered; only what was in
a file before has a note.
"""

from __future__ import annotations

import contextlib
import os

from msgspec import Struct

from stoker.executors.agent.session.framing import ProtocolError, number
from stoker.executors.linux.log_file import open_log

OUT, ERR, SAID, CUT, TAR = "out", "err", "said", "cut-", "tar"
KINDS = frozenset((TAR, *(f"{cut}{kind}" for cut in ("", CUT) for kind in (OUT, ERR, SAID))))
LONGEST_HEADING = 96
"""Bytes of the line in front of a piece."""
MOST_PIECES = len(KINDS)
"""Pieces of one attempt in one answer."""


class Piece(Struct, frozen=True):
    """What the agent says of an attempt: a part of its log, or what comes back from it."""

    key: str
    what: str
    offset: int
    data: bytes


def pieces(bulk: bytes) -> list[Piece]:
    """Split bulk data into pieces: a heading `KEY WHAT OFFSET LENGTH`, then that many bytes."""
    found: dict[tuple[str, str], Piece] = {}
    at = 0
    while at < len(bulk):
        end = bulk.find(b"\n", at, at + LONGEST_HEADING)
        words = bulk[at : max(end, at)].decode("ascii", "replace").split(" ")
        if len(words) != 4 or words[1] not in KINDS or (words[0], words[1]) in found:
            raise ProtocolError(f"a piece with the header {bulk[at : at + 40]!r}")
        key, what, offset, size = words
        start = end + 1
        at = start + number(size, len(bulk) - start)
        found[key, what] = Piece(key, what, number(offset), bulk[start:at])
    return list(found.values())


class LogMirror(Struct):
    """Copies of one attempt's output."""

    out: str
    err: str | None
    note: str
    """Where to remember what was in the files before this attempt wrote to them."""
    out_base: int = 0
    err_base: int = 0
    at_out: int = 0
    at_err: int = 0
    """How many bytes of each we have."""

    def open(self, umask: int) -> None:
        """Make the files, as the attempt itself would have; raises OSError where it could not."""
        before = os.umask(umask)
        try:
            for path in filter(None, (self.out, self.err)):
                os.close(open_log(path, 0o666))
        finally:
            os.umask(before)
        self.out_base, self.err_base = _size(self.out), _size(self.err)
        if self.out_base or self.err_base:
            with open(self.note, "w") as file:
                file.write(f"{self.out_base} {self.err_base}")

    def resume(self) -> None:
        """Go on where an earlier driver stopped: attempts have files of their own by default."""
        with contextlib.suppress(OSError, ValueError):
            with open(self.note) as file:
                out, err = file.read().split()
            self.out_base, self.err_base = int(out), int(err)
        self.at_out = max(_size(self.out) - self.out_base, 0)
        self.at_err = max(_size(self.err) - self.err_base, 0)

    def take(self, piece: Piece) -> None:
        """Add what is new in a piece; what was asked for twice comes twice."""
        if piece.what.startswith(CUT):
            self._begin_anew(piece.what.removeprefix(CUT))
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
            rest = memoryview(data)
            while rest:
                written = os.write(fd, rest)
                rest = rest[written:]
                if stream == ERR:
                    self.at_err += written
                else:
                    self.at_out += written
        finally:
            os.close(fd)

    def _begin_anew(self, stream: str) -> None:
        """The attempt has emptied its log; so do we, unless others have written to ours."""
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
        """Where the agent should go on, in stdout and stderr."""
        return str(self.at_out), str(self.at_err)

    def forget(self) -> None:
        """Its end is on record."""
        with contextlib.suppress(OSError):
            os.unlink(self.note)


def _size(path: str | None) -> int:
    try:
        return os.stat(path).st_size if path else 0
    except OSError:
        return 0
