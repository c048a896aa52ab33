"""Publisher: passes the events of a commit to the daemon's parts and to event streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stoker.core.events import Event
from stoker.core.state.record import ChangeSet
from stoker.faults import FaultTracker

Subscriber = Callable[[Sequence[Event]], None]
EventStream = Callable[[int, Sequence[Event]], None]
"""Called with the journal's number of the last event, and the events."""

Observer = Callable[[int, ChangeSet], None]
"""Called with the journal's number of the last event, and what the commits changed."""


class Publisher:
    """Calls the subscribers in order; one that fails keeps no other from being called."""

    def __init__(self, subscribers: Mapping[str, Subscriber], faults: FaultTracker) -> None:
        """`subscribers` are called in this order, before the streams; their names are reported."""
        self._subscribers, self._faults = dict(subscribers), faults
        self._streams: list[EventStream] = []
        self._observers: list[Observer] = []

    @property
    def has_streams(self) -> bool:
        """Whether a client reads the event stream or observes changes."""
        return bool(self._streams or self._observers)

    def add_stream(self, stream: EventStream) -> None:
        """Call `stream` with the events of every commit from now on; it must not block."""
        self._streams.append(stream)

    def remove_stream(self, stream: EventStream) -> None:
        """Stop that; safe to repeat, and may be called by any thread."""
        if stream in self._streams:
            self._streams.remove(stream)

    def add_observer(self, observer: Observer) -> None:
        """Call `observer` after every commit from now on; it must not block."""
        self._observers.append(observer)

    def remove_observer(self, observer: Observer) -> None:
        """Stop that; safe to repeat, and may be called by any thread."""
        if observer in self._observers:
            self._observers.remove(observer)

    def publish(self, seq: int, events: Sequence[Event], changes: ChangeSet) -> None:
        """Pass on events that are in the journal."""
        for name, subscriber in self._subscribers.items():
            self._faults.contain(name, None, subscriber, events)
        for stream in self._streams[:]:
            self._faults.contain("the event stream", None, stream, seq, events)
        for observer in self._observers[:]:
            self._faults.contain("the live stream", None, observer, seq, changes)
