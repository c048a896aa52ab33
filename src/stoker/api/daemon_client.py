"""The client of every command, with errors by kind and with patience for a daemon that restarts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from stoker import places
from stoker.api.errors import PermissionDenied, StokerError, Unreachable, of_kind
from stoker.client import client as plain
from stoker.client import transport
from stoker.client.errors import ConnectionBroken

T = TypeVar("T")
AWAY = 30.0
"""Seconds for which a daemon may be away while somebody waits for jobs."""
PAUSE = 0.2


class DaemonClient(plain.Client):
    """Speaks to one daemon, and raises what the API promises."""

    def open(
        self, method: str, target: str, body: bytes | None, timeout: float | None, *, retry: bool
    ) -> transport.Reply:
        """Send a request; return the reply's head."""
        try:
            return super().open(method, target, body, timeout, retry=retry)
        except places.UnsafeDirectory as error:
            raise PermissionDenied(str(error), error.exit_code, error.code) from None
        except StokerError as error:
            raise of_kind(error) from None

    @property
    def key(self) -> str:
        """What tells this daemon from others."""
        return str(self.path)

    @property
    def crashed(self) -> bool:
        """Whether a daemon that does not answer went without taking its leave."""
        return isinstance(self.path, str) and os.path.exists(self.path)

    def get(self, path: str, pairs: Sequence[tuple[str, object]] = ()) -> dict[str, Any]:
        """Ask for something that no method of the client is named after."""
        return self._get(path, list(pairs))

    def post(self, path: str, body: dict[str, object], *, retry: bool = False) -> dict[str, Any]:
        """Have something done that no method of the client is named after."""
        return self._post(path, body, retry=retry)

    def wait_long(
        self, select: Sequence[str], *, any_of: bool = False, timeout: float | None = None
    ) -> dict[str, Any]:
        """Wait for jobs, also while the daemon is restarted or upgraded."""
        until = time.monotonic() + timeout if timeout is not None else None

        def ask() -> dict[str, Any]:
            left = None if until is None else max(0.0, until - time.monotonic())
            return self.wait(select, any_of=any_of, timeout=left)

        return self.patiently(ask)

    def patiently(self, ask: Callable[[], T]) -> T:
        """Ask again while the daemon is away; not for ever."""
        gone_since = None
        while True:
            try:
                return ask()
            except Unreachable as error:
                now = time.monotonic()
                if isinstance(error, ConnectionBroken) or gone_since is None:
                    gone_since = now
                if now - gone_since > AWAY:
                    raise
                time.sleep(PAUSE)

    def follow(self, label: str, **more: object) -> Iterator[bytes]:
        """Yield a job's output as it is written, to the end of its last attempt."""
        attempt: object = more.pop("attempt", None)
        while True:
            yield from self._attempt(label, attempt=attempt, **more)
            view = self.patiently(lambda: self.jobs([label])["jobs"][0])
            if attempt is None or int(view["attempt"]) <= int(str(attempt)):
                return
            attempt = int(str(attempt)) + 1

    def _attempt(self, label: str, **more: object) -> Iterator[bytes]:
        done, gone_since = 0, None
        while True:
            try:
                for piece in self.log(label, follow=True, offset=done or None, **more):
                    gone_since = None
                    done += len(piece)
                    yield piece
            except Unreachable:
                now = time.monotonic()
                gone_since = gone_since or now
                if now - gone_since > AWAY:
                    raise
                time.sleep(PAUSE)
            else:
                return


def connect(autostart: bool = True, path: str | None = None) -> DaemonClient:
    """Return a link to this user's daemon, which is started at the first request if need be."""
    if path is None and os.environ.get("STOKER_SERVER"):
        from stoker.client.tcp_endpoint import from_environment

        return DaemonClient(from_environment())
    try:
        return DaemonClient(path, autostart=autostart)
    except places.UnsafeDirectory as error:
        raise PermissionDenied(str(error), error.exit_code, error.code) from None
