"""What a person sees while lines run: one line that moves, and failures as they happen."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EVERY = 0.1
BAR = 24
CAUSES = 20
"""Failures shown one by one; after that only their number."""


class Progress:
    """Counts, and draws at most ten times a second, only on a terminal."""

    def __init__(self, total: int | None, *, quiet: bool) -> None:
        self.total = total
        self.started = time.monotonic()
        self.done = self.failed = self.running = self.submitted = self.cancelled = 0
        self.tty = not quiet and os.isatty(2) and os.environ.get("TERM") != "dumb"
        self.quiet = quiet
        self.drawn_at = 0.0
        self.said: set[str] = set()

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
        over = self.done + self.failed + self.cancelled
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
        if self.failed:
            parts.append(f"\x1b[31m{self.failed} failed\x1b[0m")
        if over and self.total and over < self.total and spent > 1:
            left = spent / over * (self.total - over)
            parts.append(f"{_short(left)} left")
        else:
            parts.append(_short(spent))
        return "  ".join(parts)

    def failure(self, view: dict[str, Any]) -> None:
        """Name a line that failed, where its output is, and its last words."""
        if self.failed > CAUSES:
            return
        self._clear()
        command = view["command"].splitlines()[0]
        self.say(f"failed: {view['label']}: {command[:100]} ({view['cause']})")
        for line in view.get("tail") or []:
            self.say(f"    {line[:200]}")
        self.say(f"    {view['log']}")
        if self.failed == CAUSES:
            self.say("more failures are only counted; see: stoker queue")

    def warn(self, text: str) -> None:
        """Say something once."""
        if text not in self.said:
            self.said.add(text)
            self.say(f"stoker: {text}")

    def say(self, text: str) -> None:
        """Say something above the moving line."""
        self._clear()
        self._write(text + "\n")

    def finish(self, logs: str) -> None:
        """The last word."""
        self._clear()
        spent = time.monotonic() - self.started
        if self.quiet and not self.failed:
            return
        parts = [f"{self.done} done"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.cancelled:
            parts.append(f"{self.cancelled} not run")
        text = f"stoker: {', '.join(parts)} in {_short(spent)}; logs in {logs}"
        if self.failed:
            text += "; again: stoker retry --failed"
        self._write(text + "\n")

    def _clear(self) -> None:
        if self.tty:
            self._write("\r\x1b[K")

    @staticmethod
    def _write(text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            pass  # the terminal is gone; the work is not


def _short(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"
