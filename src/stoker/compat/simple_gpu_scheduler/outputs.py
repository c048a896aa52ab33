"""What commands print, brought from their logs to our own stdout and stderr, whole lines at a time.

Commands write straight to their log files, so they never wait for us or for our terminal, and
go on when we are gone. A file does not tell that it grew, so it is looked at now and then,
only while its command runs.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from stoker.terminal import filtered

CHUNK = 1 << 16
AT_ONCE = select.PIPE_BUF
"""Bytes that a pipe takes without blocking when it says that it is writable."""
BACKLOG = 1 << 18
"""Bytes that may wait for a slow reader; more stays in the logs."""
LONGEST_LINE = 4 << 20
"""Bytes of an unfinished line that are held back."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 0.25
RETRY = 0.005
"""Seconds before a stream that took nothing is tried again, to begin with."""


class Sink:
    """One of our own streams. It is written to only when that does not block."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.waiting = bytearray()
        self.closed = False
        """Nobody reads it any more; commands run all the same."""
        self._room = select.poll()
        self._room.register(fd, select.POLLOUT)

    @property
    def full(self) -> bool:
        """Whether enough is waiting."""
        return len(self.waiting) >= BACKLOG

    def put(self, data: bytes) -> None:
        """Have whole lines written, as soon as possible."""
        if not self.closed:
            self.waiting += data

    def push(self, patience: float | None = 0) -> bool:
        """Write what can be written; return whether anything was. None waits for the reader."""
        moved = False
        while self.waiting and self._room.poll(patience):
            try:
                with memoryview(self.waiting) as view:
                    count = os.write(self.fd, view[:AT_ONCE])
            except BlockingIOError:
                break
            except OSError:
                self.closed = True
                self.waiting.clear()
                break
            del self.waiting[:count]
            moved = True
        return moved


class Tail:
    """A log that grows, and where its lines go."""

    def __init__(self, path: str, sink: Sink) -> None:
        self.path, self.sink = path, sink
        self.needed = True
        """Whether the file stays even if there is nothing in it."""
        self.fd = -1
        self.part = b""

    def look(self) -> bool:
        """Pass on the lines that are new; return whether there was anything."""
        if self.fd < 0:
            try:
                self.fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return False
        moved = False
        while not self.sink.full and (data := os.read(self.fd, CHUNK)):
            moved = True
            head, newline, rest = data.rpartition(b"\n")
            if newline:
                self.sink.put(self.part + head + newline)
                self.part = rest
            else:
                self.part += data
                if len(self.part) > LONGEST_LINE:
                    self.sink.put(self.part)
                    self.part = b""
        return moved

    def end(self) -> bool:
        """Pass on the rest; return False when the sink cannot take it yet."""
        # Most commands print nothing: one question, no open file.
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


class Outputs:
    """Our two streams, and the logs of the commands that run."""

    def __init__(self, logs: str) -> None:
        self.logs = logs
        self.out = Sink(1)
        self.apart = not os.path.samestat(os.fstat(1), os.fstat(2))
        """Whether somebody could tell our stdout from our stderr; else one log keeps the order."""
        self.err = Sink(2) if self.apart else self.out
        self.running: dict[int, list[Tail]] = {}
        self.leftover: list[Tail] = []
        """Logs of commands that are over, but a reader is slow."""
        self.pause = SHORTEST_PAUSE
        self.next_look = 0.0

    @property
    def full(self) -> bool:
        """Whether our reader should catch up before more is started."""
        return self.out.full or self.err.full

    def say(self, text: str) -> None:
        """Say something on stdout."""
        self.out.put(_bytes(text))

    def complain(self, text: str) -> None:
        """Say something on stderr."""
        self.err.put(_bytes(text))

    def follow(self, id: int) -> None:
        """A command was started: show what it prints."""
        sinks = {"output": self.out, "error": self.err}
        self.running[id] = [Tail(path, sinks[key]) for key, path in self.paths(str(id)).items()]

    def paths(self, id: str) -> dict[str, str]:
        """Where a command's `output` is, and its `error` where that has a file of its own."""
        out = {"output": f"{self.logs}/{id}.out"}
        return out | {"error": f"{self.logs}/{id}.err"} if self.apart else out

    def over(self, id: int) -> None:
        """A command has ended: show the last of it."""
        tails = self.running.pop(id)
        for errors in tails[1:]:
            errors.needed = False
        self.leftover += tails
        self._end_leftover()

    def turn(self) -> None:
        """Look at the logs if it is time, and write what there is."""
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
        """Show the last of what is over, in order, as far as our readers take it."""
        while self.leftover and self.leftover[0].end():
            del self.leftover[0]

    def _wait_from(self, now: float, moved: bool) -> None:
        """Look again soon after something has come, less and less often when nothing does."""
        stuck = self.out.waiting or self.err.waiting
        least = RETRY if stuck else SHORTEST_PAUSE
        self.pause = least if moved else min(max(self.pause, least) * 1.5, LONGEST_PAUSE)
        self.next_look = now + self.pause

    def due(self) -> float | None:
        """Seconds until the next look; None while nothing can come."""
        if not self.running and not self.leftover and not self.out.waiting and not self.err.waiting:
            return None
        return max(self.next_look - time.monotonic(), 0.0)

    def finish(self) -> None:
        """Write the rest, at the reader's pace. A signal ends that."""
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
            time.sleep(RETRY)  # a terminal may say that it has room, and take nothing


def _has_content(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def _bytes(text: str) -> bytes:
    return f"{filtered(text, coloured=False)}\n".encode()
