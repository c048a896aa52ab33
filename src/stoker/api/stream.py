"""Events as an iterator that continues across restarts of the daemon."""

from __future__ import annotations

import select
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from stoker.api.daemon_client import DaemonClient
from stoker.api.jobs import Event
from stoker.client import reconnect
from stoker.client.events import EventStream

SILENCE_SECONDS = 60.0
"""Silence, without even a keep-alive, after which the connection is given up."""


class ResumableEventStream(EventStream):
    """Event stream from a sequence number on; each event has its own number."""

    def __init__(self, daemon_client: DaemonClient, after: int | None = None) -> None:
        self.client, self.last = daemon_client, after
        self.reopen()

    def _add_event(self, block: bytes) -> None:
        super()._add_event(block)
        if self._events:
            self._events[-1][1].setdefault("seq", self.last)

    def wait_readable(
        self, other_fd: int | None = None, seconds: float = SILENCE_SECONDS
    ) -> bool | None:
        """Wait for events or another descriptor; False if the daemon closed the connection."""
        watched: list[Any] = [self] if other_fd is None else [self, other_fd]
        # TLS may have buffered data, which select does not report.
        pending = getattr(self._sock, "pending", None)
        ready = [self] if pending and pending() else select.select(watched, [], [], seconds)[0]
        if self in ready:
            return self.receive()
        return None


def events(daemon_client: DaemonClient, after: int | None) -> Iterator[Event]:
    """Yield events after a sequence number, by default from now on; reconnects."""
    begin = after if after is not None else int(daemon_client.jobs(limit=1)["seq"])
    return _follow_events(daemon_client, begin)


def _follow_events(daemon_client: DaemonClient, after: int) -> Iterator[Event]:
    stream = reconnect.retry(lambda: ResumableEventStream(daemon_client, after))
    try:
        while True:
            for kind, content in stream.take():
                yield to_event(kind, content)
            if not stream.wait_readable():
                stream.close()
                reconnect.retry(stream.reopen)
    finally:
        stream.close()


def to_event(kind: str, content: dict[str, Any]) -> Event:
    """Return an Event."""
    job = content.get("job")
    return Event(
        seq=int(content["seq"]),
        kind=kind,
        at=datetime.fromtimestamp(content["at"], UTC),
        job=job if isinstance(job, int) else None,
        raw=content,
    )
