"""JSON bodies and replies, queries, error replies, and the check of permissions."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import AsyncGenerator, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from stoker import __version__, wire
from stoker.core.model.units import BadValue
from stoker.daemon.context import daemon_stopping
from stoker.daemon.http.permission import Denial, check_permission
from stoker.daemon.http.sessions import Sessions
from stoker.engine import CommandRejected
from stoker.executors.report_tokens import ReportTokens
from stoker.schema.daemon import ErrorDetail, ErrorReply

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from stoker.daemon.http.tokens import Tokens
    from stoker.daemon.identities import Identities

HEADERS = {wire.HEADER_VERSION: __version__, wire.HEADER_API: wire.API_VERSION}
encode = msgspec.json.Encoder().encode

logger = logging.getLogger(__name__)


def reply(value: Any) -> Response:
    """Return a JSON reply."""
    return Response(encode(value), 200, HEADERS, "application/json")


def error_reply(
    rejection: CommandRejected, status: int | None = None, headers: dict[str, str] = HEADERS
) -> Response:
    """Return the reply to a rejected request; by default with the status of its code."""
    usual_status, exit_code = wire.ERRORS.get(rejection.code, (500, 1))
    error = ErrorDetail(code=rejection.code, message=rejection.message, exit=exit_code)
    body = encode(ErrorReply(error=error))
    return Response(body, status or usual_status, headers, "application/json")


class StreamedReply(StreamingResponse):
    """A reply in pieces; its source is closed when the client disconnects."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all pieces, then close the source at once instead of at garbage collection."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            if isinstance(self.body_iterator, AsyncGenerator):
                await self.body_iterator.aclose()


async def read_body(request: Request, body_type: Any) -> Any:
    """Return the body of a request as this type; reject a wrong or too large one."""
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > wire.MAX_BODY_BYTES:
        raise CommandRejected("The request is too large. Split it into several.", "too_large")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > wire.MAX_BODY_BYTES:
            raise CommandRejected("The request is too large. Split it into several.", "too_large")
        parts.append(part)
    try:
        return msgspec.json.decode(b"".join(parts) or b"{}", type=body_type)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise CommandRejected(f"The request cannot be read: {error}", "usage") from None


async def wait_for_disconnect(request: Request) -> None:
    """Return when the client has disconnected; its body was read, so nothing else can come."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def split_words(text: str | None) -> list[str]:
    """Return the words between commas, in capitals."""
    return [word.strip().upper() for word in (text or "").split(",") if word.strip()]


def is_set(text: str | None) -> bool:
    """Return whether a switch of a query is on."""
    return text in ("1", "true")


def parse_number(text: str | None, what: str) -> int:
    """Return a whole number of a query, 0 if it is missing."""
    if not text:
        return 0
    if not text.isdecimal() or len(text) > 15:
        raise CommandRejected(f"'{what}' must be a whole number, not '{text}'.", "usage")
    return int(text)


class AuthMiddleware:
    """Rejects requests without permission before their body is read."""

    def __init__(
        self, app: ASGIApp, sessions: Sessions, names: Collection[str],
        open_paths: Collection[str], report_tokens: ReportTokens,
        identities: Identities | None = None, tokens: Tokens | None = None,
    ) -> None:  # fmt: skip
        """`names` are host names by which browsers may reach this daemon.

        `open_paths` are served on loopback ports without a token; `identities` are the users of
        a system daemon, `tokens` the named ones of users.
        """
        self.app, self.sessions, self.names = app, sessions, names
        self.identities, self.tokens = identities, tokens
        self.open_paths, self.report_tokens = open_paths, report_tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if its client has permission."""
        denial = None
        if scope["type"] == "http":
            denial = check_permission(
                scope, self.sessions, self.names, self.open_paths, self.report_tokens,
                self.identities, self.tokens,
            )  # fmt: skip
        if denial is not None:
            # Without the path: otherwise any client could fill the log with different lines.
            logger.warning("refused a request without permission (%d)", denial.status)
        try:
            await (_denied(denial) if denial else self.app)(scope, receive, send)
        except CancelledError:
            # The daemon is stopping. A reply that has not begun can still be an error.
            with suppress(RuntimeError):
                await error_reply(daemon_stopping())(scope, receive, send)


def _denied(denial: Denial) -> Response:
    # The rest of the request is not read, and the version is not disclosed.
    headers = {"Connection": "close"}
    if denial.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return error_reply(CommandRejected(denial.text, "permission"), denial.status, headers)


async def _rejected(request: Request, error: Exception) -> Response:
    assert isinstance(error, CommandRejected)
    logger.info("refused %s %s: %s", request.method, request.url.path, error.message)
    return error_reply(error)


async def _bad_value(request: Request, error: Exception) -> Response:
    return await _rejected(request, CommandRejected(str(error), "usage"))


async def _missing(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    text = f"There is no route {request.method} {request.url.path}."
    return error_reply(CommandRejected(text, "not_found" if status == 404 else "usage"), status)


async def _disconnected(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


ERROR_HANDLERS: Any = {
    CommandRejected: _rejected,
    BadValue: _bad_value,
    HTTPException: _missing,
    ClientDisconnect: _disconnected,
}
