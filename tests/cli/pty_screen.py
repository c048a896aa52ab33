"""A command in a pseudo-terminal, and the screen that a user would see."""

import os
import pty
import select
import signal
import sys
import termios
import time
from collections.abc import Callable
from fcntl import ioctl
from struct import pack

import pyte


class PtyScreen:
    """`stoker ARGS` on a terminal of this size."""

    def __init__(self, *args: str, rows: int = 24, columns: int = 100) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.written = b""
        master, slave = pty.openpty()
        self.master, self.slave = master, slave
        self.resize(rows, columns)
        self.mode = termios.tcgetattr(slave)
        environment = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": "1"}
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            ioctl(slave, termios.TIOCSCTTY, 0)
            for fd in (0, 1, 2):
                os.dup2(slave, fd)
            os.execve(sys.executable, [sys.executable, "-m", "stoker", *args], environment)

    def resize(self, rows: int, columns: int) -> None:
        ioctl(self.slave, termios.TIOCSWINSZ, pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def read(self, seconds: float) -> None:
        """Take what arrives within some time."""
        if select.select([self.master], [], [], seconds)[0]:
            piece = os.read(self.master, 65536)
            self.written += piece
            # pyte prints what it does not know: synchronised updates.
            self._stream.feed(piece.replace(b"\x1b[?2026h", b"").replace(b"\x1b[?2026l", b""))

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def until(self, condition: Callable[[str], object], seconds: float = 30.0) -> str:
        """Wait until the screen meets a condition; return it."""
        deadline = time.monotonic() + seconds
        while not condition(self.text):
            assert time.monotonic() < deadline, self.text
            self.read(0.1)
        return self.text

    def shows(self, *words: str) -> str:
        """Wait until the screen contains these words; return it."""
        return self.until(lambda text: all(word in text for word in words))

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> int:
        """Wait for the end of the command; return its exit code."""
        deadline = time.monotonic() + 30.0
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                self.read(0.0)
                return os.waitstatus_to_exitcode(status)
            self.read(0.05)
        raise AssertionError(f"it does not end:\n{self.text}")

    @property
    def is_restored(self) -> bool:
        """Whether the terminal is as before."""
        return termios.tcgetattr(self.slave) == self.mode and self.written.rstrip().endswith(
            b"\x1b[?7h\x1b[?25h\x1b[?1049l"
        )

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.master)
        os.close(self.slave)
