"""Redraw a list in place until ^C."""

from __future__ import annotations

import os
import sys
import time

from stoker.cli import output
from stoker.cli.options import Args
from stoker.cli.output import colour
from stoker.cli.output.table import display_width, shorten
from stoker.client.errors import DaemonUnreachable, UsageError
from stoker.terminal import ESCAPE, filtered, write_raw

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Data = TypeVar("Data")

ENTER_SCREEN = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Alternate screen, no cursor, no wrapping of long lines."""
LEAVE_SCREEN = "\x1b[?7h\x1b[?25h\x1b[?1049l"
BEGIN_UPDATE, END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"
"""Terminals with synchronised updates show the text in between at once."""


def watch(
    args: Args, request: Callable[[], Data], draw: Callable[[Data, int | None], list[str]]
) -> int:
    """Request and draw repeatedly: in place on a terminal, else one list after another.

    `draw` gets the height of the screen, None without a terminal. A resize is drawn at once.
    While the daemon is unreachable, the last list stays, with a note on top.
    """
    if args.flag("json"):
        raise UsageError("--json and --watch cannot be combined.")
    every = args.number("watch", 2.0) or 0.0
    if not 0.05 <= every < 1e6:
        raise UsageError("--watch takes a number of seconds, 0.1 or more.")
    if not output.is_terminal(1):
        while True:
            print("\n".join(draw(request(), None)), flush=True)
            time.sleep(every)
    data = request()  # raises without a daemon, as for every command
    write_raw(sys.stdout, ENTER_SCREEN)
    screen, note = Screen(), ""
    try:
        with _ResizeWaiter() as resizes:
            while True:
                deadline = time.monotonic() + every
                while (left := deadline - time.monotonic()) > 0:
                    size = os.get_terminal_size(1)
                    lines, columns = size.lines or 24, size.columns or 80
                    drawn = draw(data, lines - bool(note))
                    screen.show([note, *drawn] if note else drawn, lines, columns)
                    resizes.wait(left)
                try:
                    data, note = request(), ""
                except DaemonUnreachable as error:
                    note = f"{time.strftime('%H:%M:%S')}  {error.message}"
    except KeyboardInterrupt:
        return 0
    finally:
        write_raw(sys.stdout, LEAVE_SCREEN)


class Screen:
    """The content of the terminal; only changed lines are written."""

    def __init__(self) -> None:
        self.size = (0, 0)
        self.lines: list[str] = []

    def show(self, lines: list[str], height: int, width: int) -> None:
        """Replace the content of the screen."""
        write_raw(sys.stdout, self.changes(fit_lines(lines, height, width), (height, width)))

    def changes(self, lines: list[str], size: tuple[int, int]) -> str:
        """Return the text that changes the screen to these lines."""
        current = self.lines if size == self.size else []
        text = "" if size == self.size else "\x1b[2J"
        for row, line in enumerate(lines):
            if row >= len(current) or current[row] != line:
                # Clear the line first: after a full line, the cursor is on its last cell.
                text += f"\x1b[{row + 1};1H\x1b[2K{line}"
        if len(lines) < len(current):
            text += f"\x1b[{len(lines) + 1};1H\x1b[J"
        self.size, self.lines = size, lines
        return f"{BEGIN_UPDATE}{text}{END_UPDATE}" if text else ""


def fit_lines(lines: list[str], height: int, width: int) -> list[str]:
    """Return lines that fit the screen; the last one counts the omitted lines."""
    lines = [filtered(line, coloured=colour.is_enabled()) for line in lines]
    if len(lines) > height:
        lines = [*lines[: height - 1], f"… {len(lines) - height + 1} more lines"]
    return [
        line if ESCAPE in line or display_width(line) <= width else shorten(line, width)
        for line in lines
    ]


class _ResizeWaiter:
    """Waits for a timeout or a resize of the terminal."""

    def __enter__(self) -> _ResizeWaiter:  # noqa: PYI034 - typing.Self costs an import
        import signal

        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        signal.signal(signal.SIGWINCH, lambda *_: None)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def wait(self, timeout: float) -> None:
        """Return after `timeout` seconds, or at a signal."""
        import select

        if select.select([self._read], [], [], timeout)[0]:
            os.read(self._read, 4096)

    def __exit__(self, *error: object) -> None:
        import signal

        signal.set_wakeup_fd(self._before)
        signal.signal(signal.SIGWINCH, signal.SIG_DFL)
        os.close(self._read)
        os.close(self._write)
