"""TCP address of a daemon, its token, and the check of the peer before the token is sent."""

from __future__ import annotations

import os
from _socket import AF_INET, AF_INET6, SOCK_STREAM
from _socket import socket as Socket  # noqa: N812 - the C class; `socket.socket` imports enum

from stoker import places
from stoker.client.errors import DaemonUnreachable, PermissionDenied, UsageError
from stoker.wire import is_loopback

LOCAL_CONNECT_SECONDS = 1.0
REMOTE_CONNECT_SECONDS = 5.0
"""Connect timeouts, to this host and to another."""
LISTENING = "0A"
"""State of a listening socket in /proc/net/tcp."""


class Endpoint:
    """`tcp://127.0.0.1:25647` with a token, or `tls://HOST:PORT` with a pinned certificate too."""

    __slots__ = ("fingerprint", "host", "port", "token")

    def __init__(self, host: str, port: int, token: str, fingerprint: str | None = None) -> None:
        self.host, self.port = "127.0.0.1" if host == "localhost" else host, port
        self.token = token
        self.fingerprint = fingerprint
        if fingerprint is None and not is_loopback(host):
            raise UsageError(
                f"{host} is another host, so the address must be tls:// with the "
                "certificate's fingerprint."
            )

    def __str__(self) -> str:
        """Return HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def open(self, timeout: float | None) -> Socket:
        """Connect, and authenticate the peer before anything secret is sent."""
        return self._open_plain(timeout) if self.fingerprint is None else self._open_tls(timeout)

    def _open_plain(self, timeout: float | None) -> Socket:
        sock = Socket(AF_INET6 if ":" in self.host else AF_INET, SOCK_STREAM)
        try:
            sock.settimeout(LOCAL_CONNECT_SECONDS)
            sock.connect((self.host, self.port))
            owner = listening_user(self.host, self.port)
            sock.settimeout(timeout)
        except OSError as error:
            sock.close()
            raise self._unreachable(error) from None
        if owner not in (0, os.getuid()):
            sock.close()
            who = "another user" if owner is None else f"user {owner}"
            raise PermissionDenied(
                f"Port {self.port} is used by {who}, not by you. Nothing was sent."
            )
        return sock

    def _open_tls(self, timeout: float | None) -> Socket:
        import socket
        import ssl
        from hashlib import sha256

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # A self-signed certificate has no authority; it is identified by its hash alone.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        raw = None
        try:
            raw = socket.create_connection((self.host, self.port), REMOTE_CONNECT_SECONDS)
            sock = context.wrap_socket(raw)
        except OSError as error:
            if raw is not None:
                raw.close()
            raise self._unreachable(error) from None
        fingerprint = "sha256:" + sha256(sock.getpeercert(True) or b"").hexdigest()
        if fingerprint != self.fingerprint:
            sock.close()
            raise PermissionDenied(
                f"{self} has another certificate ({fingerprint}) than the trusted one. "
                "Nothing was sent."
            )
        sock.settimeout(timeout)
        return sock

    def _unreachable(self, error: OSError) -> DaemonUnreachable:
        why = "timed out" if isinstance(error, TimeoutError) else error.strerror or error
        named = os.environ.get("STOKER_SERVER")
        hint = " Check STOKER_SERVER, and that the daemon there listens." if named else ""
        return DaemonUnreachable(f"No daemon answers at {self} ({why}).{hint}")


def listening_user(host: str, port: int) -> int | None:
    """Return the uid of the process that listens on a loopback port, None if unknown.

    Any user may listen on a free port, and must not get a token.
    """
    users = set()
    addresses = {f"{end}:{port:04X}" for end in _kernel_names(host)}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                rows = [line.split() for line in file]
        except FileNotFoundError:
            continue  # a kernel without IPv6
        users |= {int(row[7]) for row in rows[1:] if row[3] == LISTENING and row[1] in addresses}
    return users.pop() if len(users) == 1 else None


def _kernel_names(host: str) -> tuple[str, ...]:
    """Return a loopback address, and the wildcards that include it, as in /proc/net/tcp."""
    any_v4, any_v6 = "0" * 8, "0" * 32
    if ":" in host:
        return any_v6, "0" * 24 + "01000000"
    name = "".join(f"{int(part):02X}" for part in reversed(host.split(".")))
    return name, any_v4, any_v6, "0" * 16 + "FFFF0000" + name


def parse(url: str, token: str, fingerprint: str | None = None) -> Endpoint:
    """Return the endpoint of a tcp:// or tls:// address."""
    kind, host, port = _split(url)
    if kind == "tls" and not fingerprint:
        raise UsageError("tls:// needs the certificate's fingerprint in STOKER_FINGERPRINT.")
    pinned = fingerprint.lower() if kind == "tls" and fingerprint else None
    return Endpoint(host, port, token, pinned)


def _split(url: str) -> tuple[str, str, int]:
    kind, _, address = url.partition("://")
    host, _, port = address.rpartition(":")
    named = host.strip("[]")
    brackets = host in (named, f"[{named}]") and (":" in named) == (host != named)
    number = int(port) if port.isascii() and port.isdecimal() and len(port) < 6 else 0
    if kind not in {"tcp", "tls"} or not named or not brackets or not 0 < number < 65536:
        raise UsageError(
            f"STOKER_SERVER={url!r} is not the address of a server; "
            "write tcp://127.0.0.1:25647 or tls://HOST:25647."
        )
    return kind, named, number


def from_environment() -> Endpoint | None:
    """Return the endpoint in STOKER_SERVER, None if it is not set."""
    url = os.environ.get("STOKER_SERVER")
    if not url:
        return None
    _split(url)  # reports a wrong address before a missing token
    path = os.environ.get("STOKER_TOKEN_FILE") or os.path.join(places.state_dir(), "token")
    return parse(url, read_token(path), os.environ.get("STOKER_FINGERPRINT"))


def read_token(path: str) -> str:
    """Return the token in a file; raise if there is none."""
    try:
        with open(path, encoding="ascii") as file:
            token = file.read().strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a token"
        raise PermissionDenied(
            f"The token in {path} cannot be read: {why}. "
            "Set STOKER_TOKEN_FILE to a copy of the server's token."
        ) from None
    if not token or not token.isprintable() or " " in token:
        raise PermissionDenied(f"There is no token in {path}.")
    return token
