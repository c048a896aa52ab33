"""How far the journal and the job ids had come, kept outside the database that may lose both."""

from __future__ import annotations

import contextlib
import os


class Watermark:
    """The last synced event and the next job id; written in place, so a full disk is no obstacle.

    The database may be repaired, restored or cut short: numbers below these stay given out.
    """

    def __init__(self, path: str, identity: str = "", earlier: str | None = None) -> None:
        """Read `path`, and `earlier`, which older releases wrote, if they are of this journal."""
        self.path, self.identity, self.earlier = path, identity, earlier
        self._fd = -1
        read = [_read(each, identity) for each in (path, earlier) if each is not None]
        self.seq = max(seq for seq, _ in read)
        self.next_id = max(next_id for _, next_id in read)
        self._durable_id = self.next_id

    def note(self, seq: int, next_id: int) -> None:
        """Remember both; they only ever grow."""
        self.seq, self.next_id = max(self.seq, seq), max(self.next_id, next_id)
        line = f"{self.identity} {self.seq} {self.next_id}\n".lstrip()
        # The commit that it is about has succeeded: a failure here must not undo that.
        with contextlib.suppress(OSError):
            if self._fd >= 0 and not self._is_in_place():
                self.close()
            if self._fd < 0:
                self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._fd, line.encode(), 0)
            if self.earlier is not None:
                os.unlink(self.earlier)
                self.earlier = None

    def _is_in_place(self) -> bool:
        """Whether the open file is still the one of this name, neither deleted nor moved."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path))
        except FileNotFoundError:
            return False

    def sync(self) -> None:
        """Put the ids on disk if there are new ones; the rest is written whenever it is."""
        if self._fd >= 0 and self.next_id > self._durable_id:
            os.fdatasync(self._fd)
            self._durable_id = self.next_id

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _read(path: str, identity: str) -> tuple[int, int]:
    """The two numbers in a file; zeros where there are none, or those of another journal."""
    try:
        with open(path, "rb") as file:
            words = file.read(128).partition(b"\n")[0].split()
    except OSError:
        return 0, 0
    if identity:
        if words[:1] != [identity.encode()]:
            return 0, 0
        words = words[1:]
    numbers = [int(word) for word in words[:2] if word.isdigit() and len(word) < 16]
    seq, next_id = [*numbers, 0, 0][:2]
    return seq, next_id
