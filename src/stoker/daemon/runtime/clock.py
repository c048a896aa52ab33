"""The real clocks."""

from __future__ import annotations

import time

from stoker.engine import Instant


def system_clock() -> Instant:
    """Return the present time."""
    return Instant(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))
