"""Follow the output of several jobs at once, line by line, with the job in front of each line."""

from __future__ import annotations

import sys
from queue import Empty, SimpleQueue
from threading import Lock, Thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import BinaryIO

MAX_CONNECTIONS = 64
"""Jobs followed at the same time: each has a connection, and the daemon accepts 256 in all."""
MAX_LINE_BYTES = 1 << 20


class LineWriter:
    """Writes whole lines, each with a prefix; of a redrawn line, what is visible at its end."""

    def __init__(self, target: BinaryIO, prefix: str, lock: Lock) -> None:
        self._target, self._prefix, self._lock = target, prefix.encode(), lock
        self._rest = b""

    def write(self, data: bytes) -> int:
        """Write the lines that are complete now, and keep the rest."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        if lines:
            shown = [line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines]
            with self._lock:
                self._target.write(b"".join(self._prefix + line + b"\n" for line in shown))
                self._target.flush()
        return len(data)

    def flush(self) -> None:
        """Nothing: every complete line is flushed."""

    def close(self) -> None:
        """Write a last line that has no end."""
        if self._rest:
            self.write(b"\n")


def follow_many(labels: Sequence[str], copy: Callable[[str, LineWriter], None]) -> None:
    """Let `copy` write the output of every job until all have ended."""
    todo: SimpleQueue[str] = SimpleQueue()
    for label in labels:
        todo.put(label)
    ended: SimpleQueue[Exception | None] = SimpleQueue()
    lock, width = Lock(), max(map(len, labels))

    def follow() -> None:
        while True:
            try:
                label = todo.get_nowait()
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
