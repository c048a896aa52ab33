"""Follow the output of several jobs at once; each line is prefixed with its job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import BinaryIO

MAX_CONNECTIONS = 64
"""Jobs followed at the same time: each uses a connection, and the daemon accepts 256."""
MAX_LINE_BYTES = 1 << 20


class LineWriter:
    """Writes whole lines, each with a prefix; of a redrawn line, the last version."""

    def __init__(self, target: BinaryIO, prefix: str, lock: Lock) -> None:
        self._target, self._prefix, self._lock = target, prefix.encode(), lock
        self._partial = b""

    def write(self, data: bytes) -> int:
        """Write the complete lines; keep an incomplete one."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > MAX_LINE_BYTES:
            lines, self._partial = [*lines, self._partial], b""
        if lines:
            shown = [line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines]
            with self._lock:
                self._target.write(b"".join(self._prefix + line + b"\n" for line in shown))
                self._target.flush()
        return len(data)

    def flush(self) -> None:
        """Do nothing: complete lines are flushed at once."""

    def close(self) -> None:
        """Write a last line without a line end."""
        if self._partial:
            self.write(b"\n")


def follow_many(labels: Sequence[str], copy: Callable[[str, LineWriter], None]) -> None:
    """Call `copy` for every job, in threads, until all have ended."""
    pending: SimpleQueue[str] = SimpleQueue()
    for label in labels:
        pending.put(label)
    ended: SimpleQueue[Exception | None] = SimpleQueue()
    lock, width = Lock(), max(map(len, labels))

    def follow() -> None:
        while True:
            try:
                label = pending.get_nowait()
            except Empty:
                return
            writer = LineWriter(sys.stdout.buffer, f"{label:>{width}} | ", lock)
            try:
                copy(label, writer)
                writer.close()
            except Exception as error:  # noqa: BLE001 - raised again in the main thread
                ended.put(error)
                return
            ended.put(None)

    for _ in range(min(MAX_CONNECTIONS, len(labels))):
        Thread(target=follow, daemon=True).start()
    for _ in labels:
        error = ended.get()
        if error is not None:
            raise error
