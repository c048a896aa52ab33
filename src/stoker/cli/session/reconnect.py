"""Staying with jobs while the daemon is restarted, upgraded or killed: they go on, and so do we."""

from __future__ import annotations

import time

from stoker.client.client import Client
from stoker.client.errors import ConnectionBroken, DaemonUnreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol

    class Target(Protocol):
        """Where output is copied to."""

        def write(self, data: bytes, /) -> int:
            """Write bytes."""

        def flush(self) -> None:
            """Make them visible."""


SECONDS = 30.0
"""How long a daemon may be away."""
PAUSE = 0.2


def wait(
    client: Client,
    select: Sequence[str],
    *,
    any_of: bool = False,
    timeout: float | None = None,
    met: bool = True,
) -> dict[str, Any]:
    """Wait for jobs; unless we have `met` the daemon before, its absence is an error at once."""
    began = time.monotonic()
    gone_since = None
    while True:
        spent = time.monotonic() - began
        left = None if timeout is None else max(0.0, timeout - spent)
        try:
            return client.wait(select, any_of=any_of, timeout=left)
        except DaemonUnreachable as error:
            met = met or isinstance(error, ConnectionBroken)
            now = time.monotonic()
            if isinstance(error, ConnectionBroken) or gone_since is None:
                gone_since = now
            if not met or now - gone_since > SECONDS:
                raise
            time.sleep(PAUSE)


def copy_log(client: Client, label: str, target: Target, **more: object) -> int:
    """Follow a log to its end; return how many bytes it had."""
    done = 0
    gone_since = None
    while True:
        try:
            for piece in client.log(label, follow=True, offset=done or None, **more):
                gone_since = None
                target.write(piece)
                target.flush()
                done += len(piece)
        except DaemonUnreachable:
            # Only a whole log can be taken up again where it was left.
            now = time.monotonic()
            gone_since = gone_since or now
            if "tail" in more or "since" in more or now - gone_since > SECONDS:
                raise
            time.sleep(PAUSE)
        else:
            return done


def copy_attempts(client: Client, label: str, target: Target, attempt: int, **more: object) -> None:
    """Follow a job's log to its end, from one attempt on over all further ones."""
    while True:
        copy_log(client, label, target, attempt=attempt, **more)
        view = wait_for_view(client, label)
        if int(view["attempt"]) <= attempt:
            return
        attempt += 1
        more.pop("tail", None)


def wait_for_view(client: Client, label: str) -> dict[str, Any]:
    """How a job stands, from a daemon that may be away for a moment."""
    until = time.monotonic() + SECONDS
    while True:
        try:
            view: dict[str, Any] = client.jobs([label])["jobs"][0]
        except DaemonUnreachable:
            if time.monotonic() > until:
                raise
            time.sleep(PAUSE)
        else:
            return view
