"""Copy the logs of running commands to stdout and stderr, in whole lines.

Commands write to their log files, so they neither wait for this process or its terminal nor end
with it. A file cannot notify that it grew, so it is polled while its command runs.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from stoker.terminal import filtered

CHUNK = 1 << 16
MAX_PIPE_WRITE = select.PIPE_BUF
"""Bytes that a writable pipe accepts without blocking."""
MAX_BUFFERED_BYTES = 1 << 18
"""Bytes buffered for a slow reader; more stays in the logs."""
MAX_LINE_BYTES = 4 << 20
"""Maximum bytes of an unfinished line that are held back."""
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.05, 0.25
RETRY_SECONDS = 0.005
"""First delay before a blocked stream is tried again."""


class OutputStream:
    """stdout or stderr, written without blocking."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.waiting = bytearray()
        self.closed = False
        """The reader is gone; commands continue."""
        self._room = select.poll()
        self._room.register(fd, select.POLLOUT)

    @property
    def full(self) -> bool:
        """Return True if the buffer is full."""
        return len(self.waiting) >= MAX_BUFFERED_BYTES

    def put(self, data: bytes) -> None:
        """Buffer whole lines."""
        if not self.closed:
            self.waiting += data

    def push(self, timeout: float | None = 0) -> bool:
        """Write buffered data; return True if something was written. None blocks."""
        moved = False
        while self.waiting and self._room.poll(timeout):
            try:
                with memoryview(self.waiting) as view:
                    count = os.write(self.fd, view[:MAX_PIPE_WRITE])
            except BlockingIOError:
                break
            except OSError:
                self.closed = True
                self.waiting.clear()
                break
            del self.waiting[:count]
            moved = True
        return moved


class LogTail:
    """A growing log file and its target stream."""

    def __init__(self, path: str, sink: OutputStream) -> None:
        self.path, self.sink = path, sink
        self.needed = True
        """Keep the file even if it is empty."""
        self.fd = -1
        self.part = b""

    def look(self) -> bool:
        """Copy new lines; return True if there were any."""
        if self.fd < 0:
            try:
                self.fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return False
        moved = False
        while not self.sink.full and (data := os.read(self.fd, CHUNK)):
            moved = True
            head, newline, incomplete = data.rpartition(b"\n")
            if newline:
                self.sink.put(self.part + head + newline)
                self.part = incomplete
            else:
                self.part += data
                if len(self.part) > MAX_LINE_BYTES:
                    self.sink.put(self.part)
                    self.part = b""
        return moved

    def end(self) -> bool:
        """Copy the rest; return False if the stream is full."""
        # Most commands print nothing: one stat() instead of opening the file.
        if self.fd >= 0 or _has_content(self.path):
            self.look()
            if self.sink.full:
                return False
            if self.part:
                self.sink.put(self.part + b"\n")
            if self.fd >= 0:
                os.close(self.fd)
        if not self.needed and not _has_content(self.path):
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        return True


class OutputCopier:
    """Both streams, and the logs of the running commands."""

    def __init__(self, logs: str) -> None:
        self.logs = logs
        self.out = OutputStream(1)
        self.apart = not os.path.samestat(os.fstat(1), os.fstat(2))
        """stdout and stderr go to different places; otherwise one log keeps the order."""
        self.err = OutputStream(2) if self.apart else self.out
        self.running: dict[int, list[LogTail]] = {}
        self.leftover: list[LogTail] = []
        """Logs of finished commands that are not fully copied."""
        self.pause = MIN_POLL_SECONDS
        self.next_look = 0.0

    @property
    def full(self) -> bool:
        """Return True if the reader must catch up before more commands start."""
        return self.out.full or self.err.full

    def say(self, text: str) -> None:
        """Print a line on stdout."""
        self.out.put(_bytes(text))

    def complain(self, text: str) -> None:
        """Print a line on stderr."""
        self.err.put(_bytes(text))

    def follow(self, id: int) -> None:
        """Start copying the output of a command."""
        sinks = {"output": self.out, "error": self.err}
        self.running[id] = [LogTail(path, sinks[key]) for key, path in self.paths(str(id)).items()]

    def paths(self, id: str) -> dict[str, str]:
        """Return the path of the `output` log, and of the `error` log if it is separate."""
        out = {"output": f"{self.logs}/{id}.out"}
        return out | {"error": f"{self.logs}/{id}.err"} if self.apart else out

    def over(self, id: int) -> None:
        """Copy the rest of the output of a finished command."""
        tails = self.running.pop(id)
        for errors in tails[1:]:
            errors.needed = False
        self.leftover += tails
        self._end_leftover()

    def turn(self) -> None:
        """Poll the logs if due, and write buffered data."""
        moved = False
        now = time.monotonic()
        if now >= self.next_look:
            moved = self._look()
            self._wait_from(now, moved)
        moved = self.out.push() or moved
        if self.err.push() or moved:
            self._wait_from(now, True)

    def _look(self) -> bool:
        moved = False
        for tails in self.running.values():
            for tail in tails:
                moved = tail.look() or moved
        self._end_leftover()
        return moved

    def _end_leftover(self) -> None:
        """Copy the rest of finished commands in order, as far as the streams accept it."""
        while self.leftover and self.leftover[0].end():
            del self.leftover[0]

    def _wait_from(self, now: float, moved: bool) -> None:
        """Set the next poll: soon after output, with backoff otherwise."""
        stuck = self.out.waiting or self.err.waiting
        least = RETRY_SECONDS if stuck else MIN_POLL_SECONDS
        self.pause = least if moved else min(max(self.pause, least) * 1.5, MAX_POLL_SECONDS)
        self.next_look = now + self.pause

    def due(self) -> float | None:
        """Return the seconds until the next poll; None if nothing is pending."""
        if not self.running and not self.leftover and not self.out.waiting and not self.err.waiting:
            return None
        return max(self.next_look - time.monotonic(), 0.0)

    def finish(self) -> None:
        """Write the rest, blocking; a signal ends it."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for tails in self.running.values():
            self.leftover += tails
        while True:
            self._end_leftover()
            self.err.push(None)
            self.out.push(None)
            if not self.leftover and not self.out.waiting and not self.err.waiting:
                return
            time.sleep(RETRY_SECONDS)  # a terminal may poll as writable and accept nothing


def _has_content(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def _bytes(text: str) -> bytes:
    return f"{filtered(text, coloured=False)}\n".encode()
