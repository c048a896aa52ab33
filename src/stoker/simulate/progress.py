"""How far a simulation is, in one line on a terminal; nothing where nobody looks."""

from __future__ import annotations

import os
import sys
from time import monotonic

from stoker.terminal import clean, write_raw

OFTEN = 0.2
"""Seconds between two lines."""


class ProgressLine:
    """Counts jobs that ended, over all runs."""

    def __init__(self, jobs: int, quiet: bool = False) -> None:
        """`jobs` in all runs together; `quiet`: show nothing."""
        self.all, self.before = jobs, 0
        self.title = ""
        self.begin = self.last = monotonic()
        self.shown = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self.calls = 0

    def about(self, text: str) -> None:
        """Something that takes its time before the first run: what it is."""
        if self.shown:
            write_raw(sys.stderr, f"\r\x1b[K{clean(text[: _width() - 1])}")

    def start(self, title: str) -> None:
        """A run begins."""
        self.title = title
        self._draw(0)

    def heard(self, done: int) -> None:
        """So many jobs of this run have ended; cheap, since it is said at every event."""
        self.calls += 1
        if self.calls & 255:
            return
        if self.shown and monotonic() - self.last >= OFTEN:
            self._draw(done)

    def over(self, jobs: int) -> None:
        """A run is over."""
        self.before += jobs

    def clear(self) -> None:
        """Leave the line empty."""
        if self.shown:
            write_raw(sys.stderr, "\r\x1b[K")

    def _draw(self, done: int) -> None:
        if not self.shown:
            return
        self.last = monotonic()
        done += self.before
        share = done / self.all if self.all else 0.0
        text = f"{self.title}: {done:,} of {self.all:,} jobs, {100 * share:.0f} %"
        spent = self.last - self.begin
        if share > 0.01 and spent > 1:
            text += f", {clock(spent * (1 - share) / share)} left"
        self.about(text)


def clock(seconds: float) -> str:
    """Return `0:42`, `1:02:03`."""
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"


def _width() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80
