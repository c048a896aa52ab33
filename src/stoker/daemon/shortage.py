"""A machine whose disk is full: closed to new jobs until there is room, or a while has passed."""

from __future__ import annotations

import time

from msgspec import Struct

PATIENCE = 60.0
"""Seconds after which it is tried again in any case: another job may need less."""

class Shortage(Struct):
    """Since when a machine is short of room, and how much it had then."""

    since: float
    free: int | None

    @classmethod
    def now(cls, free: int | None) -> Shortage:
        """It has just turned a job away."""
        return cls(time.monotonic(), free)

    def over(self, free: int | None) -> bool:
        """Whether jobs may be put there again."""
        if time.monotonic() - self.since >= PATIENCE:
            return True
        # So much more than before that somebody has made room: worth a try at once.
        return free is not None and self.free is not None and free > 2 * self.free
