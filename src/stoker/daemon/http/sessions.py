"""Browser sessions: one-time codes, cookies, and what survives a restart of the daemon.

Only hashes of codes and cookies are kept. Everything here belongs to the API thread.
"""

from __future__ import annotations

import logging
import time
from hashlib import sha256
from secrets import token_hex, token_urlsafe

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stoker import places
from stoker.daemon.http.private_file import read_private
from stoker.engine import CommandRejected

logger = logging.getLogger(__name__)

CODE_SECONDS = 60.0
"""How long a code that opens one session is valid."""
MAX_SESSIONS = 200
"""Of a user."""
MAX_CODES = 50
"""Of a user, that are not opened yet."""
SECRET_BYTES = 24
VIEW, ACT = "view", "act"


class Session(Struct, frozen=True, kw_only=True):
    """A browser that has opened a code, or a shared code, from which sessions are opened."""

    id: str
    rights: str
    """`view` or `act`."""
    secret: str
    """The hash of its cookie or, of a shared code, of the code."""
    created: float
    expires: float
    share: bool = False
    """Whether it is a shared code."""
    note: str = ""
    logs: bool = True
    """Whether it may read the output of jobs."""
    parent: str | None = None
    """The shared code that opened it."""
    uid: int | None = None
    """Its user, in system mode."""

    @property
    def is_expired(self) -> bool:
        """Whether its time is over."""
        return time.time() >= self.expires


class _Stored(Struct):
    sessions: list[Session] = []
    listen: list[str] = []


class Sessions:
    """All sessions and codes, in a file that only its owner can read."""

    def __init__(self, path: str) -> None:
        self._path = path
        stored = read_private(path, _Stored) or _Stored()
        self._sessions = {each.secret: each for each in stored.sessions if not each.is_expired}
        self._codes: dict[str, tuple[Session, float]] = {}
        """Codes that open one session, and until when."""
        self._used: dict[str, float] = {}
        self._addresses = stored.listen if self._sessions else []

    @property
    def addresses(self) -> list[str]:
        """Ports that are opened again after a restart, because browsers have sessions there."""
        return list(self._addresses)

    def keep_address(self, address: str) -> None:
        """Open this port again after a restart, as long as there are sessions."""
        if address not in self._addresses:
            self._addresses.append(address)
            self._write()

    def forget_address(self, address: str) -> None:
        """Leave this port closed after a restart."""
        if address in self._addresses:
            self._addresses.remove(address)
            self._write()

    def create(
        self, rights: str, seconds: float, note: str = "", share: bool = False,
        logs: bool = True, uid: int | None = None,
    ) -> tuple[Session, str]:  # fmt: skip
        """Return a new session, not opened yet, and the code that opens it."""
        self._drop_expired()
        codes = sum(session.uid == uid for session, _ in self._codes.values())
        if self._count(uid) >= MAX_SESSIONS or codes >= MAX_CODES:
            raise CommandRejected(
                "There are too many sessions. End some: stoker ui --sessions", "failed"
            )
        code, now = token_urlsafe(SECRET_BYTES), time.time()
        session = Session(
            id=token_hex(4), rights=rights, secret=_hash(code), created=now,
            expires=now + seconds, share=share, note=note, logs=logs, uid=uid,
        )  # fmt: skip
        if share:
            self._add(session)
        else:
            self._codes[session.secret] = session, now + CODE_SECONDS
        return session, code

    def open(self, code: str) -> tuple[Session, str]:
        """Return the session that a code opens, and the value of its cookie."""
        self._drop_expired()
        hash = _hash(code)
        entry = self._codes.pop(hash, None)
        shared = self._sessions.get(hash)
        cookie = token_urlsafe(SECRET_BYTES)
        if entry is not None:
            session = replace(entry[0], secret=_hash(cookie))
        elif shared is not None and shared.share and self._count(shared.uid) < MAX_SESSIONS:
            session = replace(
                shared, id=token_hex(4), secret=_hash(cookie), share=False, parent=shared.id,
                created=time.time(),
            )  # fmt: skip
        else:
            raise CommandRejected(
                "This link was used already or has expired. Get a new one: stoker ui", "permission"
            )
        self._add(session)
        return session, cookie

    def find(self, cookie: str) -> Session | None:
        """Return the session of a cookie; None if there is none, or it has expired."""
        session = self._sessions.get(_hash(cookie))
        if session is None or session.share or session.is_expired:
            return None
        self._used[session.id] = time.time()
        return session

    def is_open(self, session: Session) -> bool:
        """Return False after a session was ended or has expired."""
        return session.secret in self._sessions and not session.is_expired

    def used_at(self, session: Session) -> float | None:
        """Return when a session was last used, since the daemon was started."""
        return self._used.get(session.id)

    def all(self) -> list[Session]:
        """Return all sessions and shared codes, oldest first."""
        self._drop_expired()
        return sorted(self._sessions.values(), key=lambda session: session.created)

    def end(self, id: str) -> None:
        """End a session, or a shared code with all its sessions."""
        ended = [each for each in self._sessions.values() if id in (each.id, each.parent)]
        codes = [hash for hash, (session, _) in self._codes.items() if session.id == id]
        if not ended and not codes:
            raise CommandRejected(f"There is no session {id}.", "not_found")
        for session in ended:
            del self._sessions[session.secret]
        for hash in codes:
            del self._codes[hash]
        self._write()

    def _count(self, uid: int | None) -> int:
        return sum(session.uid == uid for session in self._sessions.values())

    def _add(self, session: Session) -> None:
        self._sessions[session.secret] = session
        self._write()

    def _drop_expired(self) -> None:
        now = time.time()
        self._codes = {hash: entry for hash, entry in self._codes.items() if entry[1] > now}
        for secret, session in list(self._sessions.items()):
            if session.is_expired:
                del self._sessions[secret]

    def _write(self) -> None:
        stored = _Stored(list(self._sessions.values()), self._addresses)
        try:
            places.write_private(self._path, msgspec.json.encode(stored).decode())
        except OSError as error:  # they are valid until the daemon ends
            logger.warning("sessions are not stored: %s", places.describe_os_error(error))


def _hash(secret: str) -> str:
    return sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
