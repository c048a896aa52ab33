"""Events as an iterator that outlives the daemon it reads from."""

from __future__ import annotations

import select
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from stoker.api.daemon_client import DaemonClient
from stoker.api.jobs import Event
from stoker.client import reconnect
from stoker.client.events import EventStream

QUIET = 60.0
"""Seconds without a word, not even that it is still there, before a daemon counts as gone."""


class Stream(EventStream):
    """The daemon's events, each with its number."""

    def __init__(self, link: DaemonClient, after: int | None = None) -> None:
        self.client, self.last = link, after
        self.reopen()

    def _add_event(self, block: bytes) -> None:
        super()._add_event(block)
        if self._events:
            self._events[-1][1].setdefault("seq", self.last)

    def next_ones(self, beside: int | None = None, seconds: float = QUIET) -> bool | None:
        """Wait for something, or for another descriptor; False when the daemon hung up."""
        watched: list[Any] = [self] if beside is None else [self, beside]
        # TLS may have taken in more than was asked for, of which the kernel knows nothing.
        pending = getattr(self._sock, "pending", None)
        ready = [self] if pending and pending() else select.select(watched, [], [], seconds)[0]
        if self in ready:
            return self.receive()
        return None


def events(link: DaemonClient, after: int | None) -> Iterator[Event]:
    """Yield events behind a sequence number, else from now on, over connections that break."""
    begin = after if after is not None else int(link.jobs(limit=1)["seq"])
    return _endless(link, begin)


def _endless(link: DaemonClient, after: int) -> Iterator[Event]:
    stream = reconnect.retry(lambda: Stream(link, after))
    try:
        while True:
            for kind, content in stream.take():
                yield read(kind, content)
            if not stream.next_ones():
                stream.close()
                reconnect.retry(stream.reopen)
    finally:
        stream.close()


def read(kind: str, content: dict[str, Any]) -> Event:
    """Return an event as a value."""
    job = content.get("job")
    return Event(
        seq=int(content["seq"]),
        kind=kind,
        at=datetime.fromtimestamp(content["at"], UTC),
        job=job if isinstance(job, int) else None,
        raw=content,
    )
