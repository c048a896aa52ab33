"""Watermark: the last synced event and the next job id, kept outside the database."""

from __future__ import annotations

import contextlib
import os

from stoker import places


class Watermark:
    """The last synced event and the next job id; written in place, so it needs no free space.

    The database may be repaired, restored or truncated: numbers below these are not reused.
    """

    def __init__(self, path: str, identity: str = "", earlier: str | None = None) -> None:
        """Read `path`, and `earlier`, which older releases wrote, if they are of this journal."""
        self.path, self.identity, self.earlier = path, identity, earlier
        self._fd = -1
        marks = [_read(file, identity) for file in (path, earlier) if file is not None]
        self.seq = max(seq for seq, _ in marks)
        self.next_id = max(next_id for _, next_id in marks)
        self._durable_id = self.next_id

    def note(self, seq: int, next_id: int) -> None:
        """Record both numbers; they only grow."""
        self.seq, self.next_id = max(self.seq, seq), max(self.next_id, next_id)
        line = f"{self.identity} {self.seq} {self.next_id}\n".lstrip()
        # The commit has succeeded: a failure here must not undo it.
        with contextlib.suppress(OSError):
            if self._fd >= 0 and not places.leads_to(self.path, os.fstat(self._fd)):
                self.close()
            if self._fd < 0:
                self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._fd, line.encode(), 0)
            if self.earlier is not None:
                os.unlink(self.earlier)
                self.earlier = None

    def sync(self) -> None:
        """Sync the file if there are new ids; the kernel writes the sequence number in time."""
        if self._fd >= 0 and self.next_id > self._durable_id:
            os.fdatasync(self._fd)
            self._durable_id = self.next_id

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _read(path: str, identity: str) -> tuple[int, int]:
    """Return the two numbers in a file; zeros without one, or if it is of another journal."""
    try:
        with open(path, "rb") as file:
            fields = file.read(128).partition(b"\n")[0].split()
    except OSError:
        return 0, 0
    if identity:
        if fields[:1] != [identity.encode()]:
            return 0, 0
        fields = fields[1:]
    numbers = [int(field) for field in fields[:2] if field.isdigit() and len(field) < 16]
    seq, next_id = [*numbers, 0, 0][:2]
    return seq, next_id
