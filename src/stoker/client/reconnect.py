"""Wait for jobs and follow their output while the daemon restarts: jobs continue meanwhile."""

from __future__ import annotations

import time

from stoker.client.client import Client
from stoker.client.errors import ConnectionBroken, DaemonUnreachable
from stoker.wire import JsonObject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Protocol, TypeVar

    T = TypeVar("T")

    class Target(Protocol):
        """Where output is copied to."""

        def write(self, data: bytes, /) -> int:
            """Write bytes."""

        def flush(self) -> None:
            """Make them visible."""


AWAY_SECONDS = 30.0
"""How long a daemon may be away."""
PAUSE_SECONDS = 0.2


def retry(request: Callable[[], T], *, was_connected: bool = True) -> T:
    """Send a request until a daemon replies; raise if it is away for too long.

    Unless there `was_connected` a daemon before, its absence is an error at once.
    """
    away_since = None
    while True:
        try:
            return request()
        except DaemonUnreachable as error:
            broken = isinstance(error, ConnectionBroken)
            was_connected = was_connected or broken
            now = time.monotonic()
            if broken or away_since is None:
                away_since = now
            if not was_connected or now - away_since > AWAY_SECONDS:
                raise
            time.sleep(PAUSE_SECONDS)


def wait(
    client: Client,
    select: Sequence[str],
    *,
    any_of: bool = False,
    timeout: float | None = None,
    was_connected: bool = True,
) -> JsonObject:
    """Return the reply to a wait for jobs, across restarts of the daemon."""
    deadline = None if timeout is None else time.monotonic() + timeout

    def request() -> JsonObject:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        return client.wait(select, any_of=any_of, timeout=left)

    return retry(request, was_connected=was_connected)


def follow_log(client: Client, label: str, **query: object) -> Iterator[bytes]:
    """Yield the log of one attempt until it ends."""
    offset = 0
    away_since = None
    while True:
        try:
            for piece in client.log(label, follow=True, offset=offset or None, **query):
                away_since = None
                offset += len(piece)
                yield piece
        except DaemonUnreachable:
            now = time.monotonic()
            away_since = away_since or now
            # Only a whole log can be continued at an offset.
            if "tail" in query or "since" in query or now - away_since > AWAY_SECONDS:
                raise
            time.sleep(PAUSE_SECONDS)
        else:
            return


def follow_attempts(client: Client, label: str, attempt: int, **query: object) -> Iterator[bytes]:
    """Yield a job's log until the job ends, from one attempt on over all further ones."""
    while True:
        yield from follow_log(client, label, attempt=attempt, **query)
        view = retry(lambda: client.jobs([label])["jobs"][0])
        if int(view["attempt"]) <= attempt:
            return
        attempt += 1
        query.pop("tail", None)


def copy(pieces: Iterator[bytes], target: Target) -> None:
    """Write every piece as soon as it arrives."""
    for piece in pieces:
        target.write(piece)
        target.flush()
