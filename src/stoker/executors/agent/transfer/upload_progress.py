"""UploadProgress: bytes of an upload, counted by the sending thread and read by the loop."""

from __future__ import annotations

import time

from stoker.core.model.units import approximate_duration

UNITS = (("GB", 10**9, 10**10), ("MB", 10**6, 10**6), ("kB", 10**3, 10**3), ("bytes", 1, 0))
"""Name, bytes, and the smallest upload that is shown in it."""
FIRST_ESTIMATE_SECONDS = 2.0
"""Before that time, the rate is no basis for an estimate."""


class UploadProgress:
    """Bytes of one upload, in all and sent so far; `total` is None while files are read."""

    __slots__ = ("_first", "began", "sent", "total")

    def __init__(self, total: int | None) -> None:
        self.total, self.sent = total, 0
        self.began, self._first = 0.0, 0
        """The time of the first bytes, and their number."""

    def count(self, sent: int) -> None:
        """Note the number of bytes that were sent so far."""
        if sent and not self.sent:
            self.began, self._first = time.monotonic(), sent
        self.sent = sent

    def seconds_left(self, now: float) -> float | None:
        """Estimate the remaining time by the mean rate; None while that is unknown."""
        elapsed, sent = now - self.began, self.sent - self._first
        if self.total is None or elapsed < FIRST_ESTIMATE_SECONDS or sent <= 0:
            return None
        return max(self.total - self.sent, 0) * elapsed / sent

    def text(self, node: str, now: float) -> str:
        """Return `sending 312 of 900 MB to gpu1, about 40 s left`."""
        if self.total is None:
            return f"reading its files, to send them to {node}"
        unit, size = next((name, size) for name, size, least in UNITS if self.total >= least)
        digits = 1 if unit == "GB" else 0
        done, total = (f"{amount / size:,.{digits}f}" for amount in (self.sent, self.total))
        left = self.seconds_left(now)
        rest = f", about {approximate_duration(left)} left" if left is not None else ""
        return f"sending {done} of {total} {unit} to {node}{rest}"
