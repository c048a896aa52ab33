"""Progress of a simulation: one line on a terminal, nothing elsewhere."""

from __future__ import annotations

import os
import sys
from time import monotonic

from stoker.core.model.units import format_duration
from stoker.terminal import clean, write_raw

REDRAW_SECONDS = 0.2


class ProgressLine:
    """Count the ended jobs of all runs and show them on stderr."""

    def __init__(self, jobs: int, quiet: bool = False) -> None:
        """`jobs` of all runs together; `quiet`: show nothing."""
        self.total_jobs, self.finished_runs_jobs = jobs, 0
        self.title = ""
        self.started_at = self.drawn_at = monotonic()
        self.shown = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self.calls = 0

    def show(self, text: str) -> None:
        """Show a text in place of the line."""
        if self.shown:
            write_raw(sys.stderr, f"\r\x1b[K{clean(text[: _width() - 1])}")

    def start_run(self, title: str) -> None:
        """Show the title of a new run."""
        self.title = title
        self._draw(0)

    def update(self, done: int) -> None:
        """Set the ended jobs of this run; cheap, because it is called at every event."""
        self.calls += 1
        if self.calls & 255:
            return
        if self.shown and monotonic() - self.drawn_at >= REDRAW_SECONDS:
            self._draw(done)

    def end_run(self, jobs: int) -> None:
        """Count the jobs of a finished run."""
        self.finished_runs_jobs += jobs

    def clear(self) -> None:
        """Clear the line."""
        if self.shown:
            write_raw(sys.stderr, "\r\x1b[K")

    def _draw(self, done: int) -> None:
        if not self.shown:
            return
        self.drawn_at = monotonic()
        done += self.finished_runs_jobs
        share = done / self.total_jobs if self.total_jobs else 0.0
        text = f"{self.title}: {done:,} of {self.total_jobs:,} jobs, {100 * share:.0f} %"
        spent = self.drawn_at - self.started_at
        if share > 0.01 and spent > 1:
            text += f", {format_duration(spent * (1 - share) / share)} left"
        self.show(text)


def _width() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80
