"""JSON bodies and replies, queries, error replies, and the check of permissions."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from stoker import __version__, wire
from stoker.core.model.units import BadValue
from stoker.daemon.context import daemon_stopping
from stoker.daemon.http.auth import is_allowed, tcp_auth
from stoker.engine import CommandRejected
from stoker.schema.daemon import ErrorDetail, ErrorReply

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

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

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if its client has permission."""
        rejection = _reject_unauthorised(scope) if scope["type"] == "http" else None
        if rejection is not None:
            # Without the path: otherwise any client could fill the log with different lines.
            logger.warning("refused a request without permission (%d)", rejection.status_code)
        try:
            await (rejection or self.app)(scope, receive, send)
        except CancelledError:
            # The daemon is stopping. A reply that has not begun can still be an error.
            with suppress(RuntimeError):
                await error_reply(daemon_stopping())(scope, receive, send)


def _reject_unauthorised(scope: Scope) -> Response | None:
    """Return the reply to a request without permission, None for any other."""
    auth = tcp_auth(scope)
    if auth is not None:
        return None if auth.check_token(scope["headers"]) else _unauthorised()
    client = scope.get("client")
    if is_allowed(client[1] if client else -1):
        return None
    return error_reply(CommandRejected("This daemon belongs to another user.", "permission"))


def _unauthorised() -> Response:
    text = "This port requires a token: Authorization: Bearer TOKEN."
    # The rest of the request is not read, and the version is not disclosed.
    headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
    return error_reply(CommandRejected(text, "permission"), 401, headers)


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
