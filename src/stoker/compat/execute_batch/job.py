"""SubmittedLine: a line of a batch as a job."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.compat.execute_batch.lines import Line
    from stoker.compat.execute_batch.plan import Slot

LATE_SECONDS = 5.0
"""A line that has not started after this time is checked: another slot may be free."""


class SubmittedLine:
    """A submitted line and its slot."""

    def __init__(self, line: Line, slot: Slot, before: SubmittedLine | None = None) -> None:
        self.line, self.slot = line, slot
        self.started = self.is_late = False
        self.explained: bool = before is not None and before.explained
        """The reason why it is pending was reported."""
        self.moved = before is not None
        self.check_interval: float = (
            before.check_interval * 2 if before is not None else LATE_SECONDS
        )
        self.check_at = time.monotonic() + self.check_interval
