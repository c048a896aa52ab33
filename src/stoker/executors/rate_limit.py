"""RateLimit: an amount that may be spent at once, and how fast it is replenished."""

from __future__ import annotations


class RateLimit:
    """A token bucket."""

    def __init__(self, burst: int, rate: int, now: float) -> None:
        """`burst` may be spent at once, and `rate` more per second."""
        self._burst, self._rate = burst, rate
        self._left, self._at = float(burst), now

    def try_spend(self, amount: int, now: float) -> bool:
        """Spend an amount; return False, and spend nothing, if not enough is left."""
        self._left = min(self._left + (now - self._at) * self._rate, self._burst)
        self._at = now
        if amount > self._left:
            return False
        self._left -= amount
        return True
