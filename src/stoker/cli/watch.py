"""Redraws a list in place until ^C."""

from __future__ import annotations

import os
import sys
import time

from stoker.cli import colour, output
from stoker.cli.options import Args
from stoker.cli.table import shorten, wide
from stoker.client.errors import UsageError
from stoker.terminal import filtered, write_raw

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

ENTER = "\x1b[?1049h\x1b[?25l"
LEAVE = "\x1b[?25h\x1b[?1049l"


def seconds(args: Args) -> float | None:
    """Return how often to redraw, None when that was not asked for."""
    if not args.flag("watch"):
        return None
    if args.flag("json"):
        raise UsageError("--json and --watch cannot be combined.")
    every = args.number("watch", 2.0)
    if every is None or not 0.05 <= every < 1e6:
        raise UsageError("--watch takes a number of seconds, 0.1 or more.")
    return every


def watch(every: float, draw: Callable[[], list[str]]) -> int:
    """Draw again and again: on a terminal in place, elsewhere one after another."""
    if not output.is_terminal(1):
        while True:
            print("\n".join(draw()), flush=True)
            time.sleep(every)
    write_raw(sys.stdout, ENTER)
    try:
        while True:
            size = os.get_terminal_size(1)
            text = screen(draw(), size.lines or 24, size.columns or 80)
            write_raw(sys.stdout, f"\x1b[H{text}\x1b[J")
            time.sleep(every)
    except KeyboardInterrupt:
        return 0
    finally:
        write_raw(sys.stdout, LEAVE)


def screen(lines: list[str], height: int, width: int) -> str:
    """Fit lines into a screen; the last one says what did not fit."""
    lines = [filtered(line, coloured=colour.wanted()) for line in lines]
    if len(lines) > height - 1:
        hidden = len(lines) - (height - 2)
        lines = [*lines[: height - 2], f"... {hidden} more lines"]
    cut = [
        line if "\x1b" in line or wide(line) <= width else shorten(line, width) for line in lines
    ]
    return "".join(f"{line}\x1b[K\r\n" for line in cut)
