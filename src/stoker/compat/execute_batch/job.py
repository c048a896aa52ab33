"""A line of a batch that has been submitted."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.compat.execute_batch.lines import Line
    from stoker.compat.execute_batch.plan import Slot

LATE = 5.0
"""Seconds after which a line that has not started is looked at: another slot may be free."""


class Job:
    """A line in a slot."""

    __slots__ = ("explained", "late", "line", "look_at", "moved", "patience", "slot", "started")

    def __init__(self, line: Line, slot: Slot, before: Job | None = None) -> None:
        self.line, self.slot = line, slot
        self.started = self.late = False
        self.explained: bool = before is not None and before.explained
        """Whether it has been said why it waits."""
        self.moved = before is not None
        self.patience: float = before.patience * 2 if before is not None else LATE
        self.look_at = time.monotonic() + self.patience
