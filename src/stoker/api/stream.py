"""Events as an iterator that continues across restarts of the daemon."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from stoker.api.daemon_client import DaemonClient
from stoker.api.jobs import Event
from stoker.client import reconnect
from stoker.client.events import EventStream

SILENCE_SECONDS = 60.0
"""Silence, without even a keep-alive, after which the connection is given up."""


def events(daemon_client: DaemonClient, after: int | None) -> Iterator[Event]:
    """Yield events after a sequence number, by default from now on; reconnects."""
    begin = after if after is not None else int(daemon_client.jobs(limit=1)["seq"])
    return _follow_events(daemon_client, begin)


def _follow_events(daemon_client: DaemonClient, after: int) -> Iterator[Event]:
    stream = reconnect.retry(lambda: EventStream(daemon_client, after))
    try:
        while True:
            for kind, content in stream.take():
                job = content.get("job")
                yield Event(
                    seq=int(content["seq"]),
                    kind=kind,
                    at=datetime.fromtimestamp(content["at"], UTC),
                    job=job if isinstance(job, int) else None,
                    raw=content,
                )
            if not stream.wait(None, SILENCE_SECONDS):
                stream.close()
                reconnect.retry(stream.reopen)
    finally:
        stream.close()
