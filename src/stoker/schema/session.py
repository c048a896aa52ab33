"""Browser sessions, and tokens of users."""

from __future__ import annotations

from msgspec import Struct


class SessionCode(Struct, kw_only=True):
    """Reply of `POST /sessions`."""

    id: str
    code: str
    rights: str
    expires: str | None


class OpenedSession(Struct, kw_only=True):
    """Reply of `POST /sessions/open`."""

    id: str
    rights: str
    expires: str | None
    user: str


class SessionView(Struct, kw_only=True):
    """A browser session, or a shared code."""

    id: str
    rights: str
    note: str
    share: bool
    logs: bool
    """Whether it may read the output of jobs."""
    created: str | None
    expires: str | None
    used: str | None
    """The last request since the daemon was started."""


class SessionList(Struct, kw_only=True):
    """Reply of `GET /sessions`."""

    sessions: list[SessionView]


class SessionEnded(Struct, kw_only=True):
    """Reply of `DELETE /sessions/{id}`."""

    id: str


class TokenView(Struct, kw_only=True):
    """A named token of a user, without its secret."""

    id: str
    name: str
    user: str
    rights: str
    created: str | None
    expires: str | None
    used: str | None
    """The last request."""


class NewToken(TokenView, kw_only=True):
    """Reply of `POST /tokens`."""

    token: str
    """Its text, which is not kept."""


class TokenList(Struct, kw_only=True):
    """Reply of `GET /tokens`."""

    tokens: list[TokenView]


class TokenRevoked(Struct, kw_only=True):
    """Reply of `DELETE /tokens/{token}`."""

    id: str
    name: str
