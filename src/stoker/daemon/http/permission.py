"""Which requests are allowed: by peer uid, by token, or by the session of a browser.

Requests of browsers are denied by default. Only methods on a list of safe ones need no proof that
they come from our own page.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from stoker import wire
from stoker.daemon.http.auth import ABORT, PEER, TcpAuth, is_allowed, peer_uid, tcp_auth
from stoker.daemon.http.sessions import ACT, Session, Sessions
from stoker.daemon.http.tokens import Token, Tokens
from stoker.daemon.rights import Caller
from stoker.executors.report_tokens import ReportTokens
from stoker.wire import is_loopback

if TYPE_CHECKING:
    from starlette.types import Scope

    from stoker.daemon.identities import Identities

CALLER = "caller"
"""Key in a request's state: the Caller, in system mode or with a named token."""
SESSION = "session"
"""Key in a request's state: the Session of its cookie. Requests with other rights have none."""
REPORT_PATH = f"{wire.PREFIX}/report"
"""The only path that the token of an attempt gives access to."""
REPORT_SOURCE = "report_source"
"""Key in a request's state: the ReportSource of its token."""
NO_SESSION = (
    "This port requires a token (Authorization: Bearer TOKEN), or a session of the web page."
)
MAX_CODE_BYTES = 1024
METRICS_PATHS = ("/metrics", f"{wire.PREFIX}/metrics")
SAFE_METHODS = ("GET", "HEAD")
OPEN_PATH = f"{wire.PREFIX}/sessions/open"
SESSION_HEADER = "stoker-session"
NOT_FOR_SESSIONS = re.compile(
    rf"{wire.PREFIX}/(listen(/.*)?|sessions|tokens(/.*)?|daemon/stop|backup|history/hide)"
)
"""What a browser may not change, whatever its rights: ports, sessions, tokens, the daemon."""
OUTPUT_QUERY = re.compile(r"(^|&)(tail|hook)=")
SAME_ORIGIN = ("same-origin", "none")
"""Values of Sec-Fetch-Site of our page, and of what the user typed."""


class Denial(NamedTuple):
    """Why a request is rejected."""

    status: int
    text: str


class Headers:
    """Headers of a request by name; one that is repeated has no value."""

    def __init__(self, scope: Scope) -> None:
        self._values: dict[str, str | None] = {}
        for raw, value in scope["headers"]:
            name = raw.decode("latin-1").lower()
            self._values[name] = None if name in self._values else value.decode("latin-1")

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> str:
        """Return the value of a header, empty if it is missing or ambiguous."""
        return self._values.get(name) or ""

    @property
    def host(self) -> tuple[str, str]:
        """Name and port in the Host header; the port is empty if it is the usual one."""
        name, colon, port = self.get("host").rpartition(":")
        return (name, port) if colon and not port.endswith("]") else (self.get("host"), "")


def cookie_name(port: str, secure: bool) -> str:
    """Return the name of the session cookie; it has the port, which cookies ignore."""
    prefix = "__Host-" if secure else ""
    return f"{prefix}stoker-{port or ('443' if secure else '80')}"


def session_of(scope: Scope) -> Session | None:
    """Return the session of a request; None if it has the rights of the daemon's user."""
    session: Session | None = scope.get("state", {}).get(SESSION)
    return session


def caller_of(scope: Scope) -> Caller | None:
    """Return the user of a request to a system daemon, or of one with a named token."""
    caller: Caller | None = scope.get("state", {}).get(CALLER)
    return caller


def check_permission(
    scope: Scope, sessions: Sessions, names: Collection[str], open_paths: Collection[str],
    report_tokens: ReportTokens, identities: Identities | None = None,
    tokens: Tokens | None = None,
) -> Denial | None:  # fmt: skip
    """Return why a request is rejected, None if it is allowed; note session and caller.

    `names` are host names of this daemon besides the loopback ones; `open_paths` are served on
    loopback ports without a token. `report_tokens` are those of attempts. `identities` are those
    of a system daemon, which no token of the daemon itself gives access to. `tokens` are those of
    users.
    """
    headers, auth = Headers(scope), tcp_auth(scope)
    is_shared = auth is not None and (auth.only_metrics or identities is None)
    if auth is not None and is_shared and auth.check_token(scope["headers"]):
        if auth.only_metrics and scope["path"] not in METRICS_PATHS:
            return Denial(403, "This port serves metrics only.")
        return None
    if auth is not None and auth.only_metrics:
        return Denial(401, "This port requires its token: Authorization: Bearer TOKEN.")
    if auth is not None and (scope["method"], scope["path"]) == ("POST", REPORT_PATH):
        return _check_report(scope, headers, auth, report_tokens)
    if auth is None:
        if PEER not in scope.get("state", {}) and not is_allowed(peer_uid(scope)):
            return Denial(403, "This daemon belongs to another user.")
        if not _is_forwarded(headers):
            if identities is not None:
                scope.setdefault("state", {})[CALLER] = identities.caller(peer_uid(scope))
            return None
    elif tokens is not None and (token := tokens.find(_bearer(headers))) is not None:
        return _check_token(scope, auth, token, tokens, identities)
    elif scope["path"] in open_paths and scope["method"] in SAFE_METHODS and _is_local(scope):
        return _check_host(headers, names)
    elif "authorization" in headers:
        return Denial(401, "This port requires a token: Authorization: Bearer TOKEN.")
    denial = _check_browser(scope, headers, sessions, names)
    return denial or (_note_owner(scope, identities) if identities is not None else None)


def _check_token(
    scope: Scope, auth: TcpAuth, token: Token, tokens: Tokens, identities: Identities | None
) -> Denial | None:
    """Note the user of a named token; the name must still be that of the uid."""
    state, may_act = scope["state"], token.rights == ACT
    if identities is None:
        caller = Caller(
            uid=os.getuid(), name=token.user, is_admin=True, may_act=may_act, is_local=False
        )
    else:
        caller = identities.caller(-1 if token.uid is None else token.uid, may_act, is_local=False)
        if token.uid is None or caller.name != token.user:
            return Denial(401, f"The user {token.user} of this token does not exist any more.")
    auth.accept()
    tokens.keep(token, auth, state.get(ABORT, lambda: None))
    state[CALLER] = caller
    return None


def _bearer(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _note_owner(scope: Scope, identities: Identities) -> Denial | None:
    """Note the user of a browser session; connections of other users may not use it."""
    session = session_of(scope)
    if session is None:  # the page itself, or the opening of a session
        return None
    if session.uid is None or (tcp_auth(scope) is None and peer_uid(scope) != session.uid):
        return Denial(403, "This session belongs to another user.")
    may_act = session.rights == ACT
    caller = identities.caller(session.uid, may_act=may_act, is_local=False)
    scope["state"][CALLER] = caller
    return None


def _check_report(
    scope: Scope, headers: Headers, auth: TcpAuth, tokens: ReportTokens
) -> Denial | None:
    """Check the token of an attempt, and note the attempt in the state of the request."""
    source = tokens.check(_bearer(headers))
    if source is None:
        return Denial(401, "This route requires the token of an attempt.")
    auth.accept()
    scope.setdefault("state", {})[REPORT_SOURCE] = source
    return None


def _is_forwarded(headers: Headers) -> bool:
    """Return True for a request of a browser to a port that is forwarded to the socket.

    Our commands send `Host: stoker`; a browser sends a port, or says where it comes from.
    """
    return bool(headers.host[1]) or any(
        name in headers for name in ("origin", "sec-fetch-site", "cookie", "referer")
    )


def _check_browser(
    scope: Scope, headers: Headers, sessions: Sessions, names: Collection[str]
) -> Denial | None:
    method, path = scope["method"], scope["path"]
    _, port = headers.host
    is_opening = (method, path) == ("POST", OPEN_PATH)
    if not (is_opening or is_public(method, path) or "cookie" in headers):
        return Denial(401, NO_SESSION)
    wrong_host = _check_host(headers, names)
    if wrong_host is not None:
        return wrong_host
    site = headers.get("sec-fetch-site")
    is_secure = scope.get("scheme") == "https"
    if is_public(method, path):
        return None
    if site and site not in SAME_ORIGIN:
        return Denial(403, "The request comes from another page.")
    if is_opening:
        size = headers.get("content-length")
        is_small = size.isdecimal() and int(size) <= MAX_CODE_BYTES
        return None if is_small else Denial(413, "The request is too large.")
    session = sessions.find(_cookie(headers, cookie_name(port, is_secure)))
    if session is None:
        return Denial(401, NO_SESSION)
    auth = tcp_auth(scope)
    if auth is not None:
        auth.accept()
    scope.setdefault("state", {})[SESSION] = session
    if method in SAFE_METHODS:
        return _check_output(scope, session)
    is_own = path == f"{wire.PREFIX}/sessions/{session.id}"
    origin = f"{scope.get('scheme', 'http')}://{headers.get('host')}"
    if headers.get(SESSION_HEADER) != "1":
        return Denial(403, "The header Stoker-Session is missing.")
    if not (site == "same-origin" or headers.get("origin") == origin):
        return Denial(403, "The request comes from another page.")
    if is_own:
        return None
    if session.rights != ACT:
        return Denial(403, "This session may only look.")
    if NOT_FOR_SESSIONS.fullmatch(path) or path.startswith(f"{wire.PREFIX}/sessions"):
        return Denial(403, "Browsers may not do this; use the command line.")
    return None


def _check_host(headers: Headers, names: Collection[str]) -> Denial | None:
    """Reject the name of an attacker that resolves to this address (DNS rebinding)."""
    name = headers.host[0]
    if is_loopback(name.strip("[]")) or name == "localhost" or name in names:
        return None
    return Denial(421, f"This daemon is not called '{name[:60]}'; see [api] names.")


def _is_local(scope: Scope) -> bool:
    """Return True for a connection to a loopback address."""
    server = scope.get("server")
    return server is not None and is_loopback(server[0])


def is_public(method: str, path: str) -> bool:
    """Return True for the files of the page, which contain no data."""
    return method in SAFE_METHODS and (path == "/" or path.startswith("/ui/"))


def _check_output(scope: Scope, session: Session) -> Denial | None:
    """Reject output of jobs in a session that was shared without it."""
    query = scope.get("query_string", b"").decode("latin-1")
    if not session.logs and (scope["path"].endswith("/log") or OUTPUT_QUERY.search(query)):
        return Denial(403, "This session was shared without the output of jobs.")
    return None


def _cookie(headers: Headers, name: str) -> str:
    for part in headers.get("cookie").split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return ""
