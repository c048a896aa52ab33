"""Named tokens of users for TCP ports: only hashes are kept, and a revoked one ends its streams.

Everything here belongs to the API thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from secrets import token_hex, token_urlsafe
from weakref import WeakSet

import msgspec
from msgspec import Struct

from stoker import places
from stoker.daemon.http.auth import TcpAuth
from stoker.daemon.http.private_file import read_private
from stoker.engine import CommandRejected

PREFIX = "stk_"
SECRET_BYTES = 32
MAX_TOKENS_PER_USER = 50
DAY_SECONDS = 86400.0
USE_WRITTEN_SECONDS = 3600.0
"""How much later a use is than the stored one before it is written: not at every request."""

CallLater = Callable[[float, Callable[[], None]], None]


class Token(Struct):
    """A token of a user: its name, rights and the hash of its secret."""

    id: str
    name: str
    hash: str
    rights: str
    """`view` or `act`."""
    user: str
    created: float
    expires: float
    uid: int | None = None
    """The user of a system daemon as which it acts."""
    used: float | None = None

    @property
    def is_expired(self) -> bool:
        """Whether its time is over."""
        return time.time() >= self.expires


class Tokens:
    """All tokens, in a file that only its owner can read, and the connections that use them."""

    def __init__(self, path: str, call_later: CallLater | None = None) -> None:
        self._path, self._call_later = path, call_later or _call_later
        stored = read_private(path, list[Token]) or []
        self._by_hash = {token.hash: token for token in stored if not token.is_expired}
        self._written: dict[str, float] = {}
        """The last written use by id."""
        self._connections: dict[str, WeakSet[TcpAuth]] = {}
        """Connections with requests with a token, by its id."""

    def create(
        self, name: str, rights: str, seconds: float, user: str, uid: int | None
    ) -> tuple[Token, str]:
        """Return a new token and its text, which is not kept."""
        own = [token for token in self.all() if token.uid == uid]
        if any(token.name == name for token in own):
            raise CommandRejected(
                f"There is a token '{name}' already; revoke it first: stoker token revoke {name}",
                "failed",
            )
        if len(own) >= MAX_TOKENS_PER_USER:
            raise CommandRejected("There are too many tokens; revoke some.", "failed")
        text, now = PREFIX + token_urlsafe(SECRET_BYTES), time.time()
        token = Token(token_hex(4), name, _hash(text), rights, user, now, now + seconds, uid)
        self._by_hash[token.hash] = token
        try:
            self._write()
        except CommandRejected:
            del self._by_hash[token.hash]
            raise
        return token, text

    def find(self, text: str) -> Token | None:
        """Return the token of a text; None if there is none, or it has expired."""
        token = self._by_hash.get(_hash(text)) if text.startswith(PREFIX) else None
        if token is None or token.is_expired:
            return None
        before, token.used = token.used, time.time()
        self._written.setdefault(token.id, before or 0.0)
        if token.used - self._written[token.id] > USE_WRITTEN_SECONDS:
            self._written[token.id] = token.used
            with suppress(CommandRejected):  # the time of the last use is not worth a failure
                self._write()
        return token

    def keep(self, token: Token, connection: TcpAuth, abort: Callable[[], None]) -> None:
        """Note a connection that is ended with its token."""
        connection.abort = abort
        is_first = token.id not in self._connections
        self._connections.setdefault(token.id, WeakSet()).add(connection)
        if is_first:
            self._end_in_time(token)

    def _end_in_time(self, token: Token) -> None:
        """End the connections of a token when it expires."""
        if token.is_expired:
            self._abort(token)
        elif self._connections.get(token.id):
            left = max(min(token.expires - time.time(), DAY_SECONDS), 0.0)
            self._call_later(left, lambda: self._end_in_time(token))
        else:
            self._connections.pop(token.id, None)

    def all(self) -> list[Token]:
        """Return all tokens, oldest first."""
        self._by_hash = {key: each for key, each in self._by_hash.items() if not each.is_expired}
        return sorted(self._by_hash.values(), key=lambda token: token.created)

    def revoke(self, token: Token) -> None:
        """End a token and all connections that use it."""
        self._by_hash.pop(token.hash, None)
        self._abort(token)
        self._write()

    def _abort(self, token: Token) -> None:
        for connection in self._connections.pop(token.id, ()):
            if connection.abort is not None:
                connection.abort()

    def _write(self) -> None:
        text = msgspec.json.encode(list(self._by_hash.values())).decode()
        try:
            places.write_private(self._path, text)
        except OSError as error:
            raise CommandRejected(
                f"Tokens cannot be stored: {places.describe_os_error(error)}.", "failed"
            ) from None


def _call_later(seconds: float, function: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, function)


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
