"""LogCopy: the output of one pod in files of this host, each byte once, over several daemons."""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from stoker.executors.agent.transfer import log_mirror
from stoker.executors.agent.transfer.log_mirror import LogMirror
from stoker.executors.kubernetes.handover.logs.log_reader import (
    ERR,
    REPORT,
    LogPosition,
    LogReader,
    Piece,
)


class Note(Struct):
    """What a later daemon cannot find out."""

    out_base: int
    err_base: int
    position: LogPosition


class LogCopy:
    """Writes what a reader finds in the log."""

    def __init__(self, mirror: LogMirror, nonce: str) -> None:
        self.mirror, self._nonce = mirror, nonce
        self.reader = LogReader(nonce)
        self._saved = LogPosition()

    def create(self, umask: int) -> None:
        """Create the files of a new attempt; raise OSError if that is impossible."""
        self.mirror.open(umask)
        self.save()

    def resume(self) -> None:
        """Continue the files of an earlier daemon."""
        mirror = self.mirror
        note = _read(mirror.note)
        if note is None:
            mirror.resume()  # without a note, the files are those of the attempt alone
            return
        mirror.out_base, mirror.err_base = note.out_base, note.err_base
        mirror.at_out = max(_size(mirror.out) - mirror.out_base, 0)
        mirror.at_err = max(_size(mirror.err) - mirror.err_base, 0)
        self.reader = LogReader(self._nonce, note.position)

    def write(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Append output; return the pieces of the report."""
        reports = []
        for piece in pieces:
            if piece.stream == REPORT:
                reports.append(piece)
            else:
                stream = log_mirror.ERR if piece.stream == ERR else log_mirror.OUT
                self.mirror.take(log_mirror.Piece("", stream, piece.offset, piece.data))
        return reports

    def save(self) -> None:
        """Write the note if there is something new."""
        position = self.reader.position
        if self._saved == position and os.path.exists(self.mirror.note):
            return
        self._saved = msgspec.structs.replace(position)
        note = Note(self.mirror.out_base, self.mirror.err_base, position)
        part = f"{self.mirror.note}.part"
        with open(part, "wb") as file:
            file.write(msgspec.json.encode(note))
        os.rename(part, self.mirror.note)


def _read(path: str) -> Note | None:
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=Note)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return None


def _size(path: str | None) -> int:
    try:
        return os.stat(path).st_size if path else 0
    except OSError:
        return 0
