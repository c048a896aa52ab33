"""TCP ports beside the socket: the same API for whoever shows the token."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from stoker.core.units import BadValue
from stoker.daemon.http import credentials as keys
from stoker.daemon.listen_address import join, split
from stoker.engine import CommandRejected
from stoker.wire import is_loopback

if TYPE_CHECKING:
    import ssl

    from stoker.daemon.http.auth import TcpAuth

MOST_LISTENERS = 16
MOST_CONNECTIONS = 256
"""Over all ports; beyond it the oldest connection without a token is closed."""
BACKLOG = 512
AT_ONCE = 32
"""Connections that are accepted before earlier ones are read. It must be smaller than the limit,
so that a request with the token is read before its connection becomes the oldest."""
HANDSHAKE_SECONDS = 10.0
STRANGER_SECONDS = 10.0
"""How long a connection may stay that has not shown the token."""
SHORTAGE_SECONDS = 1.0
"""How long no connection is accepted after the descriptors of this process ran out."""
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Protocol = Callable[["TcpAuth"], Any]
"""Makes the HTTP side of a new connection."""


class Connections:
    """The connections at all ports of a daemon, and which of them may be closed for a new one."""

    def __init__(self) -> None:
        self.count = 0
        self.unauthenticated: dict[TcpAuth, Callable[[], object]] = {}
        """How to close each, oldest first; one that has shown its token leaves when it is met."""

    def has_room(self) -> bool:
        """Return whether there may be one more, after closing one if need be."""
        return self.count < MOST_CONNECTIONS or self.evict()

    def evict(self) -> bool:
        """Close the oldest connection that has not shown the token; False if there is none."""
        while self.unauthenticated:
            entrance = next(iter(self.unauthenticated))
            close = self.unauthenticated.pop(entrance)
            if not entrance.known:
                close()
                entrance.leave()
                return True
        return False


class TcpListener:
    """One port."""

    def __init__(
        self,
        text: str,
        tls: bool,
        state: str,
        note: dict[str, Any],
        connections: Connections | None = None,
    ) -> None:
        host, port = split(text)
        if not tls and not is_loopback(host):
            raise BadValue(f"{host} can be reached from other hosts, so only TLS is allowed there.")
        self.tls, self.note = tls, note
        self.token, self.token_file = keys.token(state), keys.token_path(state)
        self.context: ssl.SSLContext | None = None
        self.fingerprint: str | None = None
        if tls:
            self.context, self.fingerprint = _secured(state)
        self.socket = _bound(host, port)
        self.address = join(host, self.socket.getsockname()[1])
        self.connections = connections or Connections()
        self.tasks: set[asyncio.Task[None]] = set()
        self.transports: WeakSet[asyncio.WriteTransport] = WeakSet()

    def begin(self, protocol: Protocol) -> None:
        """Take connections from now on; called by the thread that serves them."""
        here = asyncio.get_running_loop()
        here.add_reader(self.socket.fileno(), self._accept, here, protocol)

    def _accept(self, here: asyncio.AbstractEventLoop, protocol: Protocol) -> None:
        """Accept several at once: a full backlog would keep out those with the token."""
        for _ in range(AT_ONCE):
            try:
                sock, _ = self.socket.accept()
            except OSError as error:  # none is left, or it is gone again
                if error.errno in _SHORTAGES and not self.connections.evict():
                    here.remove_reader(self.socket.fileno())
                    here.call_later(SHORTAGE_SECONDS, self._accept_again, here, protocol)
                return
            self._take(here, sock, protocol)

    def _take(
        self, here: asyncio.AbstractEventLoop, sock: socket.socket, protocol: Protocol
    ) -> None:
        from stoker.daemon.http.auth import TcpAuth

        if not self.connections.has_room():
            sock.close()
            return
        entrance = TcpAuth(self.token, lambda: self._left(entrance))
        self.connections.count += 1
        task = here.create_task(self._serve(here, sock, protocol, entrance))
        self.connections.unauthenticated[entrance] = task.cancel
        self.tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self.tasks.discard(task)
            if task.cancelled():  # perhaps before it began
                sock.close()

        task.add_done_callback(done)

    def _accept_again(self, here: asyncio.AbstractEventLoop, protocol: Protocol) -> None:
        if self.socket.fileno() >= 0:
            here.add_reader(self.socket.fileno(), self._accept, here, protocol)

    async def _serve(
        self,
        here: asyncio.AbstractEventLoop,
        sock: socket.socket,
        protocol: Protocol,
        entrance: TcpAuth,
    ) -> None:
        seconds = HANDSHAKE_SECONDS if self.context else None
        try:
            transport, _ = await here.connect_accepted_socket(
                lambda: protocol(entrance), sock, ssl=self.context, ssl_handshake_timeout=seconds
            )
        except BaseException as error:
            sock.close()
            entrance.leave()
            if not isinstance(error, OSError):  # no TLS, or not for long
                raise
            return
        self.transports.add(transport)
        if entrance in self.connections.unauthenticated:
            self.connections.unauthenticated[entrance] = transport.abort
        here.call_later(STRANGER_SECONDS, _unless_known, entrance, transport)

    def _left(self, entrance: TcpAuth) -> None:
        self.connections.count -= 1
        self.connections.unauthenticated.pop(entrance, None)

    def close(self) -> None:
        """Take no more connections; what is being answered still is."""
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().remove_reader(self.socket.fileno())
        self.socket.close()

    def hang_up(self) -> None:
        """End all connections, whatever is being said on them."""
        for task in self.tasks:
            task.cancel()
        for transport in self.transports:
            transport.abort()

    def view(self) -> dict[str, Any]:
        """What may be told of it; the token itself is not."""
        return {
            "address": self.address,
            "tls": self.tls,
            "token_file": self.token_file,
            "fingerprint": self.fingerprint,
            "note": self.note,
        }


class TcpListeners:
    """All ports of a daemon."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.open: dict[str, TcpListener] = {}
        self.connections = Connections()
        self._protocol: Protocol | None = None

    def add(self, text: str, tls: bool | None = None, note: dict[str, Any] | None = None) -> str:
        """Open a port and return its address; `tls` None means wherever it is needed."""
        host, port = split(text)
        tls = not is_loopback(host) if tls is None else tls
        there = self.open.get(join(host, port))
        if there is not None:
            if there.tls != tls:
                raise BadValue(f"{there.address} is already open with other settings.")
            there.note = note or there.note
            return there.address
        if len(self.open) >= MOST_LISTENERS:
            raise CommandRejected(
                f"{len(self.open)} ports are already open; close one first.", "failed"
            )
        listener = TcpListener(text, tls, self.state, note or {}, self.connections)
        self.open[listener.address] = listener
        if self._protocol is not None:
            listener.begin(self._protocol)
        return listener.address

    def begin(self, protocol: Protocol) -> None:
        """HTTP is loaded: take connections."""
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
        listener.hang_up()
        return address

    def close(self) -> None:
        """Close every port."""
        while self.open:
            self.open.popitem()[1].close()

    def views(self) -> list[dict[str, Any]]:
        """All of them, for a person."""
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
        raise CommandRejected(_why_not(join(host, port), error), "failed") from None
    return sock


def _why_not(address: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{address} is in use by another program. Choose another port."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"This host has no address {address}."
    return f"{address} cannot be listened on: {error.strerror}."


def _secured(state: str) -> tuple[ssl.SSLContext, str]:
    import ssl

    certificate, key = keys.certificate(state)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError:
        raise BadValue(
            f"{certificate} and {key} do not match. Remove both; new ones will be created."
        ) from None
    return context, keys.fingerprint(certificate)


def _unless_known(entrance: TcpAuth, transport: asyncio.WriteTransport) -> None:
    """Close a connection that has not shown the token in time."""
    if not entrance.known:
        transport.abort()  # TLS would wait for the other side's goodbye
