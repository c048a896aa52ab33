"""A helper process that talks in lines: its pipes, and its last words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

from stoker.executors.agent.session.session import Poller

CHUNK = 1 << 16
LAST_WORDS = 4096
MOST_CHUNKS = 16
"""A pipe holds no more; who goes on talking is not listened to for ever."""


class LineSubprocess:
    """Started when made; a new object for each start. Nothing here waits."""

    def __init__(
        self,
        poller: Poller,
        heard: Callable[[bytes], None],
        died: Callable[[str], None],
        command: tuple[str, ...],
    ) -> None:
        """`heard` gets every line; `died` is told once, in words, when it is over by itself.

        The `command` is Python's: what comes after its own name.
        """
        self.poller, self.heard, self.died = poller, heard, died
        self._unsent = b""
        self._line = b""
        self._said = b""
        self._closed = False
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            start_new_session=True,  # a ^C at our terminal is not meant for it
        )  # fmt: skip
        into, out, err = self.process.stdin, self.process.stdout, self.process.stderr
        assert into is not None
        assert out is not None
        assert err is not None
        self._in, self._out, self._err = into.fileno(), out.fileno(), err.fileno()
        for fd in (self._in, self._out, self._err):
            os.set_blocking(fd, False)
        poller.watch(self._out, self._hear)
        poller.watch(self._err, self._take)

    def send(self, data: bytes) -> None:
        """Write now what there is room for, the rest as room comes."""
        waiting = bool(self._unsent)
        self._unsent += data
        if not waiting:
            self._write()

    def _write(self) -> None:
        if self._closed:
            return
        try:
            sent = os.write(self._in, self._unsent)
        except BlockingIOError:
            sent = 0
        except BrokenPipeError:
            return  # the end of its output tells the rest
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self.poller.watch_room(self._in, self._write)

    def _hear(self) -> None:
        try:
            chunk = os.read(self._out, CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            self._over()
            return
        *lines, self._line = (self._line + chunk).split(b"\n")
        for line in lines:
            if not self._closed:  # by what was heard just before
                self.heard(line)

    def _take(self) -> None:
        self._listen()

    def _listen(self) -> bool:
        """Take in what it says on stderr; whether it said anything."""
        try:
            chunk = os.read(self._err, CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self.poller.unwatch(self._err)
        self._said = (self._said + chunk)[-LAST_WORDS:]
        return bool(chunk)

    def _over(self) -> None:
        """It closed its output: what it said last is why."""
        for _ in range(MOST_CHUNKS):
            if not self._listen():
                break
        lines = self._said.decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        code = self.process.poll()
        if not said and code is not None and code < 0:
            said = f"it was killed by {signal.Signals(-code).name}"
        self.died(said or "it ended without an error message")

    def close(self) -> None:
        """For good; `reap` collects what is left."""
        if self._closed:
            return
        self._closed = True
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            self.poller.unwatch(stream.fileno())
            stream.close()
        if self.process.poll() is None:
            self.process.kill()

    def reap(self) -> bool:
        """Whether it is dead and buried; never waits."""
        return self.process.poll() is not None
