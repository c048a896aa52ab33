"""ReportRates: how many reports each part of an attempt may send."""

from __future__ import annotations

import time
from collections.abc import Callable

from stoker.executors.rate_limit import RateLimit
from stoker.executors.report_tokens import ReportSource

BURST, REQUESTS_PER_SECOND = 10, 3
MAX_SOURCES = 10_000


class ReportRates:
    """A limit for each part; for the API thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limits: dict[ReportSource, RateLimit] = {}

    def may_send(self, source: ReportSource) -> bool:
        """Return False if a part makes too many requests."""
        now = self._clock()
        if source not in self._limits:
            if len(self._limits) >= MAX_SOURCES:  # most of them have ended
                self._limits.clear()
            self._limits[source] = RateLimit(BURST, REQUESTS_PER_SECOND, now)
        return self._limits[source].try_spend(1, now)
