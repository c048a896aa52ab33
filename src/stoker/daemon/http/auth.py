"""Who may talk to this daemon: its own user, root, and whoever shows its token."""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from stoker.daemon.http.server import peer

if TYPE_CHECKING:
    from starlette.types import Scope

ENTRANCE = "entrance"
"""Where a request from a TCP port carries how it came in; one from the socket carries nothing."""

HANG_UP = "hang_up"
"""Where a request carries how to end its connection without waiting for the other side."""


def guarded_protocol() -> type[H11Protocol]:
    """HTTP whose connections know their caller from the kernel, not from what they say."""

    class Guarded(H11Protocol):
        """Puts the caller's uid where the application finds it."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.app_state = {**self.app_state, HANG_UP: transport.abort}
            self.client = ("", _caller(transport))

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            entrance = self.app_state.get(ENTRANCE)
            if entrance is not None:
                entrance.leave()

    return Guarded


def _caller(transport: asyncio.Transport) -> int:
    sock = transport.get_extra_info("socket")
    try:
        return peer(sock)[1]
    except OSError:
        return -1


class TcpAuth:
    """A connection to a TCP port: a stranger, until he has shown the token."""

    def __init__(self, token: str, left: Callable[[], None]) -> None:
        self.token = token.encode()
        self.known = False
        self._left: Callable[[], None] | None = left

    def admits(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a request shows the token. Every one must."""
        shown = [value for name, value in headers if name == b"authorization"]
        word, _, given = (shown[0] if len(shown) == 1 else b"").partition(b" ")
        right = hmac.compare_digest(given.strip(), self.token) and word.lower() == b"bearer"
        self.known = self.known or right
        return right

    def leave(self) -> None:
        """The connection is over; safe to repeat."""
        left, self._left = self._left, None
        if left is not None:
            left()


def entrance_of(scope: Scope) -> TcpAuth | None:
    """How a request came in: None by the socket."""
    found: TcpAuth | None = scope.get("state", {}).get(ENTRANCE)
    return found


def hang_up(scope: Scope) -> Callable[[], None]:
    """Return what ends the connection of a request."""
    found: Callable[[], None] = scope["state"][HANG_UP]
    return found


def allowed(uid: int) -> bool:
    """Whether a caller may do anything here."""
    return uid in (os.getuid(), 0)
