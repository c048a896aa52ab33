"""JobSource: work that does not come over HTTP (`feed`)."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.core.events import Event
from stoker.engine import Command


class JobSource:
    """A second source of commands beside the API; this one has none."""

    def commands(self) -> list[Command]:
        """Return the commands of this turn."""
        return []

    def on_events(self, events: Sequence[Event]) -> None:
        """Take note of the events of a cycle."""

    def next_wakeup(self) -> float | None:
        """Return the seconds until it needs a turn even if nothing happens."""
        return None

    def on_signal(self, number: int) -> bool:
        """Handle a signal; return False to let the daemon stop."""
        return False
