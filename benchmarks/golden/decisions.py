"""Hash over events as they are stored."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

from stoker.core.events import Event
from stoker.store import codec

DECISIONS = ("AttemptPlanned", "StopAsked", "StopWithdrawn")
"""Stored names of the events that the planner makes."""


def stored_name(event: Event) -> str:
    """Return the name of an event in the journal, which a renamed class keeps."""
    return str(type(event).__struct_config__.tag)


class DecisionHash:
    """Counts events and hashes them in the form that the journal has."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._counts: Counter[str] = Counter(dict.fromkeys(DECISIONS, 0))

    def add(self, event: Event) -> None:
        """Add one event."""
        self._counts[stored_name(event)] += 1
        self._digest.update(codec.encode(event))

    def add_decisions(self, events: Iterable[Event]) -> None:
        """Add the events that the planner made."""
        for event in events:
            if stored_name(event) in DECISIONS:
                self.add(event)

    def result(self) -> dict[str, Any]:
        """Return the hash and the number of events of each kind."""
        return {"hash": self._digest.hexdigest()[:16], **self._counts}
