"""A limit on connections per second and user, so that one user cannot fill the queue of all."""

from __future__ import annotations

PER_SECOND = 500.0
BURST = 1000.0
MAX_UIDS = 10_000
REPORT_SECONDS = 10.0


class ConnectionRate:
    """A token bucket per uid."""

    def __init__(self) -> None:
        self._buckets: dict[int, tuple[float, float]] = {}
        self._reported: dict[int, float] = {}

    def allows(self, uid: int, now: float) -> bool:
        """Return whether a connection of `uid` at `now` is within the limit."""
        if len(self._buckets) > MAX_UIDS:
            self._buckets.clear()
            self._reported.clear()
        tokens, last = self._buckets.get(uid, (BURST, now))
        tokens = min(BURST, tokens + (now - last) * PER_SECOND)
        allowed = tokens >= 1.0
        self._buckets[uid] = (tokens - allowed, now)
        return allowed

    def is_reported(self, uid: int, now: float) -> bool:
        """Return whether an excess of `uid` was reported lately; otherwise it is from now on."""
        if now - self._reported.get(uid, -REPORT_SECONDS) < REPORT_SECONDS:
            return True
        self._reported[uid] = now
        return False
