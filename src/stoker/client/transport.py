"""A minimal HTTP/1.1 client over a socket: one request, one reply, one connection.

`http.client` alone would cost more than a whole command may take to start.
"""

from __future__ import annotations

import os
import sys
from _socket import AF_UNIX, SO_PEERCRED, SOCK_STREAM, SOL_SOCKET
from _socket import socket as Socket  # noqa: N812 - the C class; `socket.socket` imports enum

from stoker import __version__, places, wire
from stoker.client.errors import (
    SYSTEM_DOWN,
    ConnectionBroken,
    DaemonUnreachable,
    NoReply,
    PermissionDenied,
    StokerError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from stoker.client.tcp_endpoint import Endpoint

RECEIVE_BYTES = 65536
MAX_HEAD_BYTES = 65536
LATE_SECONDS = 3.0
NOT_HTTP = "The daemon's reply is not HTTP."


def open_socket(path: str, timeout: float | None) -> Socket:
    """Connect to the daemon's socket and check that this user or root owns it."""
    sock = Socket(AF_UNIX, SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect(path)
        peer = int.from_bytes(sock.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)[4:8], "little")
    except OSError as error:
        sock.close()
        raise _unreachable(path, error) from None
    if peer not in (0, os.getuid()):
        sock.close()
        raise PermissionDenied(
            f"{path} belongs to user {peer}, not to you. Set STOKER_HOME to a directory of yours."
        )
    return sock


def _unreachable(path: str, error: OSError) -> StokerError:
    if isinstance(error, PermissionError):
        return PermissionDenied(f"The daemon at {path} belongs to another user.")
    if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
        if path == places.system_socket():
            return DaemonUnreachable(SYSTEM_DOWN)
        return DaemonUnreachable("No daemon is running. Start one with: stoker daemon start")
    return DaemonUnreachable(
        f"The daemon at {path} cannot be reached ({error.strerror or error}). "
        "See: stoker daemon status"
    )


class Reply:
    """The head of a reply; its body is read at once or as it arrives."""

    def __init__(self, sock: Socket) -> None:
        self._sock = sock
        self._buffer = b""
        head = self._read_head()
        lines = head.decode("latin-1").split("\r\n")
        try:
            self.status = int(lines[0].split(" ", 2)[1])
        except (IndexError, ValueError):
            raise ConnectionBroken(NOT_HTTP) from None
        self.headers: dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()

    def read(self) -> bytes:
        """Return the whole body and close the connection."""
        return b"".join(self.stream())

    def stream(self) -> Iterator[bytes]:
        """Yield the body as it arrives; ConnectionBroken if the connection ends before it."""
        try:
            if "chunked" in self.headers.get("transfer-encoding", "").lower():
                decoder = ChunkedDecoder()
                while not decoder.is_complete:
                    if body := decoder.feed(self._next_piece()):
                        yield body
            elif "content-length" in self.headers:
                left = int(self.headers["content-length"])
                while left > 0:
                    piece = self._next_piece()
                    yield piece[:left]
                    left -= len(piece)
            else:
                while True:
                    try:
                        piece = self._next_piece()
                    except ConnectionBroken:
                        return
                    yield piece
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def detach(self) -> tuple[Socket, bytes]:
        """Return the connection, and the part of the body that has arrived."""
        return self._sock, self._buffer

    def _next_piece(self) -> bytes:
        """Return bytes of the body: those behind the head first, then what arrives."""
        piece, self._buffer = self._buffer, b""
        return piece or self._receive()

    def _read_head(self) -> bytes:
        while b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise ConnectionBroken(NOT_HTTP)
            self._buffer += self._receive()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        return head

    def _receive(self) -> bytes:
        try:
            piece = self._sock.recv(RECEIVE_BYTES)
        except TimeoutError:
            raise NoReply("The daemon does not answer. See: stoker daemon status.") from None
        except OSError as error:
            raise ConnectionBroken(f"The connection to the daemon broke ({error}).") from None
        if not piece:
            raise ConnectionBroken("The daemon ended while it was replying. Try again.")
        return piece


class ChunkedDecoder:
    """Decodes `Transfer-Encoding: chunked` as the bytes arrive."""

    def __init__(self) -> None:
        self.is_complete = False
        self._raw = b""
        self._left = 0
        """Bytes of the current chunk still to come, with the line end behind it."""

    def feed(self, data: bytes) -> bytes:
        """Return the part of the body that `data` brings."""
        self._raw += data
        body = b""
        while not self.is_complete:
            if self._left:
                piece = self._raw[: self._left]
                self._raw = self._raw[len(piece) :]
                body += piece[: max(self._left - 2, 0)]
                self._left -= len(piece)
                if self._left:
                    break
            size, end, remaining = self._raw.partition(b"\r\n")
            if not end:
                break
            try:
                self._left = int(size.split(b";")[0], 16) + 2
            except ValueError:
                raise ConnectionBroken(NOT_HTTP) from None
            self._raw = remaining
            self.is_complete = self._left == 2
        return body


def send(
    where: str | Endpoint, method: str, target: str, body: bytes | None, timeout: float | None
) -> Reply:
    """Send one request on a new connection and return the head of the reply.

    `where` is the path of a Unix socket, or a TCP port.
    """
    head = (
        f"{method} {target} HTTP/1.1\r\nHost: stoker\r\nConnection: close\r\n"
        f"{wire.HEADER_VERSION}: {__version__}\r\n{wire.HEADER_API}: {wire.API_VERSION}\r\n"
    )
    if isinstance(where, str):
        sock = open_socket(where, timeout)
    else:
        sock = where.open(timeout)
        head += f"Authorization: Bearer {where.token}\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    try:
        sock.sendall(head.encode("latin-1") + b"\r\n" + (body or b""))
    except TimeoutError:
        sock.close()
        raise NoReply("The daemon does not answer. See: stoker daemon status.") from None
    except OSError:
        pass  # the daemon may have rejected it early, and its reply says why
    try:
        if where == places.system_socket() and timeout is not None:
            _say_if_late(sock)
        return Reply(sock)
    except BaseException:
        sock.close()
        raise


def _say_if_late(sock: Socket) -> None:
    """Tell the user if no reply comes: the gate keeps connections until a daemon takes them."""
    from select import select

    if not select([sock], [], [], LATE_SECONDS)[0]:
        sys.stderr.write("stoker: waiting for the system daemon, which does not answer yet\n")


def quote(text: str) -> str:
    """Percent-encode everything but letters, digits and `_.-~`."""
    if text.isascii() and text.isalnum():
        return text
    return "".join(
        chr(byte) if byte < 128 and (chr(byte).isalnum() or byte in b"_.-~") else f"%{byte:02X}"
        for byte in text.encode("utf-8", "surrogateescape")
    )


def query(pairs: list[tuple[str, object]]) -> str:
    """Return `?a=1&b=2` for the pairs with a value that is not None."""
    parts = [f"{name}={quote(str(value))}" for name, value in pairs if value is not None]
    return "?" + "&".join(parts) if parts else ""
