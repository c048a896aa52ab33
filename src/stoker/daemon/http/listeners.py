"""TCP ports beside the Unix socket: the same API for clients that present the token."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from msgspec import convert

from stoker.core.model.units import BadValue
from stoker.daemon.http import credentials
from stoker.daemon.listen_address import join, split
from stoker.engine import CommandRejected
from stoker.schema.daemon import ListenerView
from stoker.wire import is_loopback

if TYPE_CHECKING:
    import ssl

    from stoker.daemon.http.auth import TcpAuth

MAX_LISTENERS = 16
MAX_CONNECTIONS = 256
"""Of all ports together; beyond it the oldest unauthenticated connection is closed."""
BACKLOG = 512
MAX_ACCEPTS_AT_ONCE = 32
"""Connections that are accepted before earlier ones are read. It must be smaller than the limit,
so that a request with the token is read before its connection becomes the oldest."""
HANDSHAKE_SECONDS = 10.0
UNAUTHENTICATED_SECONDS = 10.0
"""How long a connection may stay open without presenting the token."""
ACCEPT_PAUSE_SECONDS = 1.0
"""How long no connection is accepted after this process ran out of descriptors."""
_SHORTAGE_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Protocol = Callable[["TcpAuth"], Any]
"""Returns the HTTP protocol of a new connection."""


class Connections:
    """The connections of all ports, and which of them may be closed for new ones."""

    def __init__(self) -> None:
        self.count = 0
        self.unauthenticated: dict[TcpAuth, Callable[[], object]] = {}
        """How to close each, oldest first; authenticated ones are removed when they are found."""

    def has_room(self) -> bool:
        """Return whether there is room for one more, closing another one if necessary."""
        return self.count < MAX_CONNECTIONS or self.evict()

    def evict(self) -> bool:
        """Close the oldest unauthenticated connection; return False if there is none."""
        while self.unauthenticated:
            auth = next(iter(self.unauthenticated))
            close = self.unauthenticated.pop(auth)
            if not auth.authenticated:
                close()
                auth.close()
                return True
        return False


class TcpListener:
    """One port."""

    def __init__(
        self, text: str, tls: bool, state: str, note: dict[str, Any], connections: Connections,
        only_metrics: bool = False,
    ) -> None:  # fmt: skip
        """`only_metrics`: serve nothing but metrics, with a token of its own."""
        host, port = split(text)
        if not (tls or only_metrics or is_loopback(host)):
            raise BadValue(f"{host} can be reached from other hosts, so only TLS is allowed there.")
        self.tls, self.note = tls, note
        self.only_metrics = only_metrics
        name = credentials.METRICS_NAME if only_metrics else "token"
        self.token = credentials.load_token(state, name)
        self.token_file = credentials.token_path(state, name)
        self.context: ssl.SSLContext | None = None
        self.fingerprint: str | None = None
        if tls:
            self.context, self.fingerprint = _tls_context(state)
        self.socket = _bound(host, port)
        self.address = join(host, self.socket.getsockname()[1])
        self.connections = connections
        self.tasks: set[asyncio.Task[None]] = set()
        self.transports: WeakSet[asyncio.WriteTransport] = WeakSet()

    def begin(self, protocol: Protocol) -> None:
        """Accept connections from now on; called by the API thread."""
        if self.socket.fileno() >= 0:  # not closed
            event_loop = asyncio.get_running_loop()
            event_loop.add_reader(self.socket.fileno(), self._accept, protocol)

    def _accept(self, protocol: Protocol) -> None:
        """Accept several at once: a full backlog would keep out authenticated clients."""
        for _ in range(MAX_ACCEPTS_AT_ONCE):
            try:
                sock, _ = self.socket.accept()
            except OSError as error:  # no connection waits, or it was closed again
                if error.errno in _SHORTAGE_ERRORS and not self.connections.evict():
                    event_loop = asyncio.get_running_loop()
                    event_loop.remove_reader(self.socket.fileno())
                    event_loop.call_later(ACCEPT_PAUSE_SECONDS, self.begin, protocol)
                return
            self._take(sock, protocol)

    def _take(self, sock: socket.socket, protocol: Protocol) -> None:
        from stoker.daemon.http.auth import TcpAuth

        if not self.connections.has_room():
            sock.close()
            return
        auth = TcpAuth(self.token, lambda: self._on_closed(auth), self.only_metrics)
        self.connections.count += 1
        task = asyncio.get_running_loop().create_task(self._serve(sock, protocol, auth))
        self.connections.unauthenticated[auth] = task.cancel
        self.tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self.tasks.discard(task)
            if task.cancelled():  # possibly before it started
                sock.close()

        task.add_done_callback(done)

    async def _serve(self, sock: socket.socket, protocol: Protocol, auth: TcpAuth) -> None:
        event_loop = asyncio.get_running_loop()
        seconds = HANDSHAKE_SECONDS if self.context else None
        try:
            transport, _ = await event_loop.connect_accepted_socket(
                lambda: protocol(auth), sock, ssl=self.context, ssl_handshake_timeout=seconds
            )
        except BaseException as error:
            sock.close()
            auth.close()
            if not isinstance(error, OSError):  # no TLS handshake, or it broke off
                raise
            return
        self.transports.add(transport)
        if auth in self.connections.unauthenticated:
            self.connections.unauthenticated[auth] = transport.abort
        event_loop.call_later(UNAUTHENTICATED_SECONDS, _abort_unauthenticated, auth, transport)

    def _on_closed(self, auth: TcpAuth) -> None:
        self.connections.count -= 1
        self.connections.unauthenticated.pop(auth, None)

    def close(self) -> None:
        """Accept no more connections; open ones stay."""
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().remove_reader(self.socket.fileno())
        self.socket.close()

    def abort_connections(self) -> None:
        """Close all connections at once."""
        for task in self.tasks:
            task.cancel()
        for transport in self.transports:
            transport.abort()

    def view(self) -> ListenerView:
        """Return what clients may know; not the token itself."""
        return convert(self, ListenerView, from_attributes=True)


class TcpListeners:
    """All ports of a daemon."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.open: dict[str, TcpListener] = {}
        self.connections = Connections()
        self._protocol: Protocol | None = None

    def add(self, text: str, tls: bool | None = None, note: dict[str, Any] | None = None) -> str:
        """Open a port and return its address; `tls` None means unless it is loopback."""
        host, port = split(text)
        tls = not is_loopback(host) if tls is None else tls
        known = self.open.get(join(host, port))
        if known is not None:
            if known.tls != tls:
                raise BadValue(f"{known.address} is already open with other settings.")
            known.note = note or known.note
            return known.address
        if len(self.open) >= MAX_LISTENERS:
            raise CommandRejected(
                f"{len(self.open)} ports are already open; close one first.", "failed"
            )
        listener = TcpListener(text, tls, self.state, note or {}, self.connections)
        self.open[listener.address] = listener
        if self._protocol is not None:
            listener.begin(self._protocol)
        return listener.address

    def add_metrics(self, text: str) -> None:
        """Open a port that serves metrics only, without TLS."""
        listener = TcpListener(
            text, False, self.state, {"serves": "metrics"}, self.connections, only_metrics=True
        )
        self.open[listener.address] = listener
        if self._protocol is not None:
            listener.begin(self._protocol)

    def begin(self, protocol: Protocol) -> None:
        """Accept connections on all ports, now that HTTP is loaded."""
        self._protocol = protocol
        for listener in self.open.values():
            listener.begin(protocol)

    def remove(self, text: str) -> str:
        """Close a port."""
        address = join(*split(text))
        if address not in self.open:
            raise CommandRejected(f"Nothing listens on {address}.", "not_found")
        listener = self.open.pop(address)
        listener.close()
        listener.abort_connections()
        return address

    def close(self) -> None:
        """Close every port."""
        while self.open:
            self.open.popitem()[1].close()

    def views(self) -> list[ListenerView]:
        """Return all ports."""
        return [listener.view() for listener in self.open.values()]


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise CommandRejected(_listen_error(join(host, port), error), "failed") from None
    return sock


def _listen_error(address: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{address} is in use by another program. Choose another port."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"This host has no address {address}."
    return f"{address} cannot be listened on: {error.strerror}."


def _tls_context(state: str) -> tuple[ssl.SSLContext, str]:
    import ssl

    certificate, key = credentials.load_certificate(state)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError:
        raise BadValue(
            f"{certificate} and {key} do not match. Remove both; new ones will be created."
        ) from None
    return context, credentials.fingerprint(certificate)


def _abort_unauthenticated(auth: TcpAuth, transport: asyncio.WriteTransport) -> None:
    """Close a connection that has not presented the token in time."""
    if not auth.authenticated:
        transport.abort()  # closing TLS would wait for the peer
