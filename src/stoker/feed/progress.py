"""Progress: a progress line on the terminal, and failures as they happen."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable

from stoker.terminal import clean, filtered, write_raw
from stoker.wire import JsonObject

DRAW_SECONDS = 0.1
BAR_WIDTH = 24
MAX_SHOWN_FAILURES = 20
"""Further failures are only counted."""
MAX_KEPT_FAILURES = 1000
"""For the summary."""


class Progress:
    """Counts outcomes, and draws at most ten times per second, only on a terminal."""

    def __init__(self, total: int | None, *, quiet: bool) -> None:
        self.total = total
        self.started = time.monotonic()
        self.done = self.failed = self.running = 0
        self.cancelled = self.not_run = self.skipped = 0
        self.first: int | None = None
        self.last: int | None = None
        self.failures: list[JsonObject] = []
        self.skipped_lines: list[JsonObject] = []
        self.tty = not quiet and os.isatty(2) and os.environ.get("TERM") != "dumb"
        self.quiet = quiet
        self.drawn_at = 0.0
        self.warned: set[str] = set()

    @property
    def finished(self) -> int:
        """Lines of which nothing more will come."""
        return self.done + self.failed + self.cancelled + self.not_run + self.skipped

    @property
    def code(self) -> int:
        """0 if every line succeeded."""
        return 0 if self.finished == self.done else 1

    def submitted(self, first: int, last: int) -> None:
        """Remember the ids of jobs of this feed."""
        self.first = first if self.first is None else self.first
        self.last = last

    def ended(self, state: str, started: bool, view: Callable[[], JsonObject]) -> None:
        """Count the outcome of a line; read the job view only if it failed."""
        if state == "COMPLETED":
            self.done += 1
        elif state == "CANCELLED" and started:
            self.cancelled += 1
        elif state == "CANCELLED":
            self.not_run += 1
        else:
            self.failed += 1
            if self.failed <= MAX_KEPT_FAILURES:
                self.failure(view())

    def skip(self, lines: list[tuple[int, str]]) -> None:
        """Report lines that cannot be run; they count as failed."""
        for number, why in lines:
            self.skipped += 1
            if self.skipped <= MAX_KEPT_FAILURES:
                self.skipped_lines.append({"line": number, "why": why})
            if self.skipped <= MAX_SHOWN_FAILURES:
                self.say(f"stoker: line {number} is skipped: {why}")
            elif self.skipped == MAX_SHOWN_FAILURES + 1:
                self.say("stoker: further skipped lines are only counted")

    def stopped(self, waiting: int) -> None:
        """Count the lines that are not run, since no more are started."""
        left = waiting if self.total is None else self.total - self.finished
        self.not_run += max(left, 0)

    def due(self) -> float | None:
        """Return the seconds until the line may be drawn again."""
        return max(self.drawn_at + DRAW_SECONDS - time.monotonic(), 0.0) if self.tty else None

    def draw(self, force: bool = False) -> None:
        """Draw the line if it is due."""
        now = time.monotonic()
        if not self.tty or (not force and now - self.drawn_at < DRAW_SECONDS):
            return
        self.drawn_at = now
        self._write(f"\r\x1b[K{self._line(now)}")

    def _line(self, now: float) -> str:
        finished = self.finished
        spent = now - self.started
        parts = []
        if self.total:
            share = min(finished / self.total, 1.0)
            filled = int(share * BAR_WIDTH)
            bar = f"\x1b[32m{'━' * filled}\x1b[2m{'━' * (BAR_WIDTH - filled)}\x1b[0m"
            parts.append(f"{bar} {finished}/{self.total}")
        else:
            parts.append(f"{finished} done")
        parts.append(f"{self.running} running")
        if failed := self.failed + self.skipped:
            parts.append(f"\x1b[31m{failed} failed\x1b[0m")
        if finished and self.total and finished < self.total and spent > 1:
            left = spent / finished * (self.total - finished)
            parts.append(f"{_short(left)} left")
        else:
            parts.append(_short(spent))
        return "  ".join(parts)

    def failure(self, view: JsonObject) -> None:
        """Print a line that failed, its last output, and its log."""
        kept = ("id", "label", "command", "cause", "result", "log")
        self.failures.append({key: view.get(key) for key in kept})
        if self.failed > MAX_SHOWN_FAILURES:
            return
        self._clear()
        command = clean((view["command"].splitlines() or [""])[0])
        self.say(f"failed: {view['label']}: {command[:100]} ({view['cause']})")
        for line in view.get("tail") or []:
            self.say(f"    {clean(line)[:200]}")
        self.say(f"    {view['log']}")
        if self.failed == MAX_SHOWN_FAILURES:
            self.say("further failures are only counted; see: stoker queue")

    def warn(self, text: str) -> None:
        """Print a warning, once."""
        if text not in self.warned:
            self.warned.add(text)
            self.say(f"stoker: {text}")

    def say(self, text: str) -> None:
        """Print a line above the progress line."""
        self._clear()
        self._write(filtered(text, coloured=False) + "\n")

    def finish(self, logs: str | None) -> None:
        """Print the summary."""
        self._clear()
        spent = time.monotonic() - self.started
        if self.quiet and not self.code:
            return
        parts = [f"{self.done} done"]
        for count, word in (
            (self.failed + self.skipped, "failed"),
            (self.cancelled, "cancelled"),
            (self.not_run, "not run"),
        ):
            if count:
                parts.append(f"{count} {word}")
        where = f"logs in {logs}" if logs else "output: stoker logs ID"
        text = f"stoker: {', '.join(parts)} in {_short(spent)}; {where}"
        if self.failed:
            text += f"; to run them again: stoker retry {self._failed_jobs()}"
        self._write(text + "\n")

    def _failed_jobs(self) -> str:
        """Return the arguments of `stoker retry` for the failed lines only."""
        if self.failed <= MAX_SHOWN_FAILURES:
            return ",".join(str(failure["id"]) for failure in self.failures)
        return f"--failed {self.first}-{self.last}"

    def summary(self, logs: str | None) -> JsonObject:
        """Return the summary for --json."""
        jobs = None if self.first is None else {"first": self.first, "last": self.last}
        return {
            "done": self.done,
            "failed": self.failed + self.skipped,
            "cancelled": self.cancelled,
            "not_run": self.not_run,
            "jobs": jobs,
            "failures": self.failures,
            "left_out": self.skipped_lines,
            "seconds": round(time.monotonic() - self.started, 3),
            "logs": logs,
        }

    def _clear(self) -> None:
        if self.tty:
            self._write("\r\x1b[K")

    @staticmethod
    def _write(text: str) -> None:
        with contextlib.suppress(OSError, AttributeError):  # the terminal is gone; the feed goes on
            write_raw(sys.stderr, text)


def _short(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"
