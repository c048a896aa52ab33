"""The HTTP client of every command, with an exception class per error code."""

from __future__ import annotations

import os

from stoker import places
from stoker.api.errors import typed_error
from stoker.client import client as plain
from stoker.client import route, transport
from stoker.client.errors import PermissionDenied, StokerError
from stoker.client.tcp_endpoint import from_environment


class DaemonClient(plain.Client):
    """Client of one daemon; raises the exceptions that the API documents."""

    def open(
        self, method: str, target: str, body: bytes | None, timeout: float | None, *, retry: bool
    ) -> transport.Reply:
        """Send a request; return the reply's head."""
        try:
            return super().open(method, target, body, timeout, retry=retry)
        except places.UnsafeDirectory as error:
            raise PermissionDenied(str(error)) from None
        except StokerError as error:
            raise typed_error(error) from None

    @property
    def key(self) -> str:
        """The daemon's address, as a key."""
        return str(self.path)

    @property
    def has_crashed(self) -> bool:
        """Whether the own daemon, if it does not answer, was killed: it would remove its socket."""
        if not isinstance(self.path, str) or self.path == places.system_socket():
            return False
        return os.path.exists(self.path)


def connect(autostart: bool = True, path: str | None = None) -> DaemonClient:
    """Return a client as `stoker.client.client.connect` does."""
    try:
        other = (from_environment() or route.system_socket()) if path is None else None
        return DaemonClient(other or path, autostart=autostart and other is None)
    except places.UnsafeDirectory as error:
        raise PermissionDenied(str(error)) from None
    except StokerError as error:
        raise typed_error(error) from None
