"""How far an upload is: bytes are counted in the thread that sends them, and read by the loop."""

from __future__ import annotations

import time

from stoker.core.policy.elastic import span

UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("bytes", 1))
FIRST_ESTIMATE_SECONDS = 2.0
"""Before that, the rate says little about the rest."""


class Transfer:
    """Bytes of one upload, in all and sent so far."""

    __slots__ = ("began", "sent", "total")

    def __init__(self, total: int) -> None:
        self.total, self.sent, self.began = total, 0, time.monotonic()

    def seconds_left(self, now: float) -> float | None:
        """Estimate the rest by the mean rate so far; None while that is unknown."""
        elapsed = now - self.began
        if elapsed < FIRST_ESTIMATE_SECONDS or not self.sent:
            return None
        return max(self.total - self.sent, 0) * elapsed / self.sent

    def text(self, node: str, now: float) -> str:
        """Return `sending 312 of 900 MB to gpu1, about 40 s left`."""
        unit, size = next(each for each in UNITS if self.total >= each[1] or each[1] == 1)
        digits = 1 if unit == "GB" else 0
        done, total = (f"{amount / size:,.{digits}f}" for amount in (self.sent, self.total))
        left = self.seconds_left(now)
        rest = f", about {span(left)} left" if left is not None else ""
        return f"sending {done} of {total} {unit} to {node}{rest}"
