"""Reads and writes of pipes with a time limit."""

from __future__ import annotations

import os
import select
from typing import IO

PIECE = 1 << 18
"""Bytes that are read or written at once."""


class TransferStalled(Exception):
    """The other side neither sent nor accepted a byte within the time limit."""


class TimeoutPipe:
    """A non-blocking pipe; reads and writes fail after a time limit."""

    def __init__(self, pipe: IO[bytes], seconds: float) -> None:
        self._fd, self._seconds = pipe.fileno(), seconds
        os.set_blocking(self._fd, False)
        self._ahead, self._behind, self._taken = b"", bytearray(), 0

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end of the stream."""
        if self._ahead:
            piece, self._ahead = self._ahead[:size], self._ahead[size:]
            return piece
        if not select.select([self._fd], [], [], self._seconds)[0]:
            raise TransferStalled
        return os.read(self._fd, size)

    def skip_past(self, mark: bytes) -> bool:
        """Skip everything up to and including a mark, such as login messages; False without it."""
        seen = b""
        while mark not in seen and len(seen) < PIECE:
            piece = self.read(4096)
            if not piece:
                return False
            seen += piece
        _, separator, self._ahead = seen.partition(mark)
        return bool(separator)

    def more(self) -> bool:
        """Return whether the stream has more data; waits for it."""
        self._ahead = self._ahead or self.read(4096)
        return bool(self._ahead)

    def write(self, data: bytes) -> int:
        """Buffer data and send it in large pieces; `flush` sends the last one."""
        self._behind += data
        self._taken += len(data)
        if len(self._behind) >= PIECE:
            self.flush()
        return len(data)

    def tell(self) -> int:
        """Return how many bytes were written; `tarfile` needs it."""
        return self._taken

    def flush(self) -> None:
        """Send what is buffered."""
        left = memoryview(self._behind)
        self._behind = bytearray()
        while left:
            if not select.select([], [self._fd], [], self._seconds)[1]:
                raise TransferStalled
            left = left[os.write(self._fd, left) :]
