"""What a person sees while lines run: one line that moves, and failures as they happen."""

from __future__ import annotations

import contextlib
import os
import sys
import time

from stoker.terminal import clean, filtered, write_raw

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

EVERY = 0.1
BAR = 24
CAUSES = 20
"""Failures shown one by one; after that only their number."""
KEPT = 1000
"""Failures kept for the summary."""


class Progress:
    """Counts, and draws at most ten times a second, only on a terminal."""

    def __init__(self, total: int | None, *, quiet: bool) -> None:
        self.total = total
        self.started = time.monotonic()
        self.done = self.failed = self.running = 0
        self.cancelled = self.not_run = self.left_out = 0
        self.first: int | None = None
        self.last: int | None = None
        self.failures: list[dict[str, Any]] = []
        self.excuses: list[dict[str, Any]] = []
        self.tty = not quiet and os.isatty(2) and os.environ.get("TERM") != "dumb"
        self.quiet = quiet
        self.drawn_at = 0.0
        self.said: set[str] = set()

    @property
    def over(self) -> int:
        """Lines of which nothing more will come."""
        return self.done + self.failed + self.cancelled + self.not_run + self.left_out

    @property
    def code(self) -> int:
        """0 when every line that was read succeeded."""
        return 0 if self.over == self.done else 1

    def submitted(self, first: int, last: int) -> None:
        """These jobs are ours."""
        self.first = first if self.first is None else self.first
        self.last = last

    def ended(self, state: str, started: bool, view: Callable[[], dict[str, Any]]) -> None:
        """Count the end of a line; look at the job closely only if it failed."""
        if state == "COMPLETED":
            self.done += 1
        elif state == "CANCELLED" and started:
            self.cancelled += 1
        elif state == "CANCELLED":
            self.not_run += 1
        else:
            self.failed += 1
            if self.failed <= KEPT:
                self.failure(view())

    def leave_out(self, lines: list[tuple[int, str]]) -> None:
        """Say which lines cannot be run, and why; they count as failed."""
        for number, why in lines:
            self.left_out += 1
            if self.left_out <= KEPT:
                self.excuses.append({"line": number, "why": why})
            if self.left_out <= CAUSES:
                self.say(f"stoker: line {number} is skipped: {why}")
            elif self.left_out == CAUSES + 1:
                self.say("stoker: further skipped lines are only counted")

    def stopped(self, waiting: int) -> None:
        """No more lines are started: those still to come were not run."""
        left = waiting if self.total is None else self.total - self.over
        self.not_run += max(left, 0)

    def due(self) -> float | None:
        """Seconds until the line may be drawn again."""
        return max(self.drawn_at + EVERY - time.monotonic(), 0.0) if self.tty else None

    def draw(self, force: bool = False) -> None:
        """Draw the line if it is time."""
        now = time.monotonic()
        if not self.tty or (not force and now - self.drawn_at < EVERY):
            return
        self.drawn_at = now
        self._write(f"\r\x1b[K{self._line(now)}")

    def _line(self, now: float) -> str:
        over = self.over
        spent = now - self.started
        parts = []
        if self.total:
            share = min(over / self.total, 1.0)
            full = int(share * BAR)
            parts.append(
                f"\x1b[32m{'━' * full}\x1b[2m{'━' * (BAR - full)}\x1b[0m {over}/{self.total}"
            )
        else:
            parts.append(f"{over} done")
        parts.append(f"{self.running} running")
        if failed := self.failed + self.left_out:
            parts.append(f"\x1b[31m{failed} failed\x1b[0m")
        if over and self.total and over < self.total and spent > 1:
            left = spent / over * (self.total - over)
            parts.append(f"{_short(left)} left")
        else:
            parts.append(_short(spent))
        return "  ".join(parts)

    def failure(self, view: dict[str, Any]) -> None:
        """Name a line that failed, where its output is, and its last words."""
        kept = ("id", "label", "command", "cause", "result", "log")
        self.failures.append({key: view.get(key) for key in kept})
        if self.failed > CAUSES:
            return
        self._clear()
        command = clean((view["command"].splitlines() or [""])[0])
        self.say(f"failed: {view['label']}: {command[:100]} ({view['cause']})")
        for line in view.get("tail") or []:
            self.say(f"    {clean(line)[:200]}")
        self.say(f"    {view['log']}")
        if self.failed == CAUSES:
            self.say("further failures are only counted; see: stoker queue")

    def warn(self, text: str) -> None:
        """Say something once."""
        if text not in self.said:
            self.said.add(text)
            self.say(f"stoker: {text}")

    def say(self, text: str) -> None:
        """Say something above the moving line."""
        self._clear()
        self._write(filtered(text, coloured=False) + "\n")

    def finish(self, logs: str) -> None:
        """The last word."""
        self._clear()
        spent = time.monotonic() - self.started
        if self.quiet and not self.code:
            return
        parts = [f"{self.done} done"]
        for count, word in (
            (self.failed + self.left_out, "failed"),
            (self.cancelled, "cancelled"),
            (self.not_run, "not run"),
        ):
            if count:
                parts.append(f"{count} {word}")
        text = f"stoker: {', '.join(parts)} in {_short(spent)}; logs in {logs}"
        if self.failed:
            text += f"; to run them again: stoker retry {self._failed_jobs()}"
        self._write(text + "\n")

    def _failed_jobs(self) -> str:
        """The arguments of `stoker retry` for the failed lines, and for no other job."""
        if self.failed <= CAUSES:
            return ",".join(str(each["id"]) for each in self.failures)
        return f"--failed {self.first}-{self.last}"

    def summary(self, logs: str) -> dict[str, Any]:
        """All of it as one value, for --json."""
        jobs = None if self.first is None else {"first": self.first, "last": self.last}
        return {
            "done": self.done,
            "failed": self.failed + self.left_out,
            "cancelled": self.cancelled,
            "not_run": self.not_run,
            "jobs": jobs,
            "failures": self.failures,
            "left_out": self.excuses,
            "seconds": round(time.monotonic() - self.started, 3),
            "logs": logs,
        }

    def _clear(self) -> None:
        if self.tty:
            self._write("\r\x1b[K")

    @staticmethod
    def _write(text: str) -> None:
        with contextlib.suppress(OSError, AttributeError):  # the terminal is gone; the work is not
            write_raw(sys.stderr, text)


def _short(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"
