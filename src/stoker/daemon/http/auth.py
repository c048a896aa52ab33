"""Authentication: peer credentials on the Unix socket, a bearer token on TCP ports."""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from stoker.daemon.http.peer import peer_credentials

if TYPE_CHECKING:
    from starlette.types import Scope

PEER = "peer"
"""Key in a request's state: the UserPeer of a connection that the gate has passed on."""
TCP_AUTH = "tcp_auth"
"""Key in a request's state: the TcpAuth of its connection. Requests over the socket have none."""
ABORT = "abort"
"""Key in a request's state: the function that closes its connection without waiting."""


class AuthenticatedProtocol(H11Protocol):
    """HTTP with the uid of the peer, as the kernel knows it, in place of the client's port."""

    def connection_made(self, transport: Any) -> None:
        """Note the peer of a new connection."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, ABORT: transport.abort}
        self.client = ("", _peer_uid(transport))

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of a TCP connection, or of one from the gate."""
        super().connection_lost(exc)
        for key in (TCP_AUTH, PEER):
            if (ending := self.app_state.get(key)) is not None:
                ending.close()


def _peer_uid(transport: asyncio.Transport) -> int:
    try:
        return peer_credentials(transport.get_extra_info("socket"))[1]
    except OSError:
        return -1


class UserPeer:
    """A user's connection to a system daemon: the uid that the gate has read from the kernel."""

    def __init__(self, uid: int, on_close: Callable[[], None], refusal: str = "") -> None:
        """`refusal`: why the user may not run jobs."""
        self.uid, self.refusal = uid, refusal
        self._on_close: Callable[[], None] | None = on_close

    def close(self) -> None:
        """Report that the connection has ended; safe to repeat."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


class TcpAuth:
    """A TCP connection and whether it has presented the token."""

    def __init__(
        self, token: str, on_close: Callable[[], None], only_metrics: bool = False
    ) -> None:
        self.token, self.only_metrics = token.encode(), only_metrics
        self.authenticated = False
        self.abort: Callable[[], None] | None = None
        """Closes the connection, if a request on it had a token that may be revoked."""
        self._on_close: Callable[[], None] | None = on_close

    def check_token(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return whether a request presents the token; every request must."""
        values = [value for name, value in headers if name == b"authorization"]
        scheme, _, token = (values[0] if len(values) == 1 else b"").partition(b" ")
        valid = hmac.compare_digest(token.strip(), self.token) and scheme.lower() == b"bearer"
        self.authenticated = self.authenticated or valid
        return valid

    def accept(self) -> None:
        """Keep the connection open: a request on it belongs to a browser session."""
        self.authenticated = True

    def close(self) -> None:
        """Report that the connection has ended; safe to repeat."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


def user_peer(scope: Scope) -> UserPeer | None:
    """Return the connection of a request that came by the gate."""
    peer: UserPeer | None = scope.get("state", {}).get(PEER)
    return peer


def peer_uid(scope: Scope) -> int:
    """Return the uid of a request over a socket, as the kernel knows it; -1: unknown."""
    peer = user_peer(scope)
    if peer is not None:
        return peer.uid
    client = scope.get("client")
    return client[1] if client else -1


def tcp_auth(scope: Scope) -> TcpAuth | None:
    """Return the TcpAuth of a request; None if it came over the socket."""
    auth: TcpAuth | None = scope.get("state", {}).get(TCP_AUTH)
    return auth


def abort_connection(scope: Scope) -> Callable[[], None]:
    """Return the function that closes the connection of a request."""
    abort: Callable[[], None] = scope["state"][ABORT]
    return abort


def is_allowed(uid: int) -> bool:
    """Return whether a uid may use this daemon: its own user and root."""
    return uid in (os.getuid(), 0)
