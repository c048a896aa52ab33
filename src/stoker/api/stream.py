"""Events as an iterator that outlives the daemon it reads from."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from stoker.api.errors import Unreachable
from stoker.api.jobs import Event
from stoker.api.link import AWAY, PAUSE, Link
from stoker.client.events import EventStream

QUIET = 60.0
"""Seconds without a word, not even that it is still there, before a daemon counts as gone."""


def events(link: Link, after: int | None) -> Iterator[Event]:
    """Yield events behind a sequence number, over connections that come and go."""
    stream = EventStream.__new__(EventStream)
    stream.client, stream.last = link, after
    link.patiently(stream.reopen)
    try:
        while True:
            for kind, content in stream.take():
                yield read(kind, content)
            ready = select.select([stream], [], [], QUIET)[0]
            if not ready or not stream.receive():
                stream.close()
                reopen(stream, link)
    finally:
        stream.close()


def read(kind: str, content: dict[str, object]) -> Event:
    """Return an event as a value."""
    raise NotImplementedError
