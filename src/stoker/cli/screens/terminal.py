"""RawTerminal: keys one at a time, the alternate screen, and the way back on every exit."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios

from stoker.cli.session.live import ENTER_SCREEN, LEAVE_SCREEN
from stoker.terminal import write_raw

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

NAMED_KEYS = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down", b"\x1b[5~": "pgup",
    b"\x1b[6~": "pgdn", b"\x1b[H": "home", b"\x1b[F": "end", b"\x1b[1~": "home",
    b"\x1b[4~": "end", b"\x1b": "esc", b"\r": "enter", b"\n": "enter", b"\x7f": "backspace",
    b"\x08": "backspace",
}  # fmt: skip
"""Keys that send a sequence."""


class RawTerminal:
    """The terminal of this process, restored on every exit, also by SIGTERM and SIGHUP."""

    def __init__(self) -> None:
        self._before = termios.tcgetattr(0)
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._was_suspended = False

    def __enter__(self) -> RawTerminal:  # noqa: PYI034 - typing.Self costs an import
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _exit)
        signal.signal(signal.SIGWINCH, lambda *_: None)
        signal.signal(signal.SIGTSTP, self._suspend)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._enter()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGWINCH, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)
        self._leave()
        os.close(self._read)
        os.close(self._write)

    def _enter(self) -> None:
        mode: list[Any] = termios.tcgetattr(0)
        mode[3] &= ~(termios.ICANON | termios.ECHO)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(0, termios.TCSADRAIN, mode)
        write_raw(sys.stdout, ENTER_SCREEN)

    def _leave(self) -> None:
        write_raw(sys.stdout, LEAVE_SCREEN)
        termios.tcsetattr(0, termios.TCSADRAIN, self._before)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Stop as the shell expects, and continue with a new screen."""
        self._leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._enter()
        self._was_suspended = True

    def take_suspended(self) -> bool:
        """Return whether the process was suspended since the last call."""
        was_suspended, self._was_suspended = self._was_suspended, False
        return was_suspended

    def size(self) -> tuple[int, int]:
        """Return lines and columns."""
        size = os.get_terminal_size(1)
        return max(size.lines or 24, 3), max(size.columns or 80, 20)

    def wait(self, other: int | None, seconds: float) -> tuple[list[str], bool]:
        """Return the keys that were pressed, and whether the other descriptor is readable.

        A resize also ends the wait.
        """
        watched = [0, self._read, *([other] if other is not None else [])]
        ready = select.select(watched, [], [], seconds)[0]
        if self._read in ready:
            os.read(self._read, 4096)
        keys = parse_keys(os.read(0, 1024)) if 0 in ready else []
        return keys, other is not None and other in ready


def parse_keys(data: bytes) -> list[str]:
    """Return the keys that a terminal has sent; an empty read is its end."""
    if not data:
        return ["q"]
    keys = []
    while data:
        for sequence, name in NAMED_KEYS.items():
            if data.startswith(sequence) and (sequence != b"\x1b" or data[1:2] not in (b"[", b"O")):
                keys.append(name)
                data = data[len(sequence) :]
                break
        else:
            if data[:1] == b"\x1b" and len(data) > 1:  # an unknown sequence
                end = next((at for at in range(2, len(data)) if 64 <= data[at] < 127), len(data))
                data = data[end + 1 :]
                continue
            size = next((n for n in range(1, 5) if _is_text(data[:n])), 1)
            keys.append(data[:size].decode("utf-8", "replace"))
            data = data[size:]
    return keys


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
