"""HTTP as this API speaks it: replies, errors, bodies and queries, and who may ask."""

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
from stoker.core.units import BadValue
from stoker.daemon.context import daemon_stopping
from stoker.daemon.http.auth import allowed, entrance_of
from stoker.engine import CommandRejected

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

HEADERS = {wire.HEADER_VERSION: __version__, wire.HEADER_API: wire.API_VERSION}
encode = msgspec.json.Encoder().encode

logger = logging.getLogger(__name__)


def reply(value: Any, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(encode(value), status, HEADERS, "application/json")


def refusal_reply(refusal: CommandRejected) -> Response:
    """An error, as the contract has it."""
    status, exit_code = wire.ERRORS.get(refusal.code, (500, 1))
    error = {"code": refusal.code, "message": refusal.message, "exit": exit_code}
    return reply({"error": error}, status)


class Stream(StreamingResponse):
    """A reply in pieces, whose source is closed when the client has hung up."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. Without the end here, the garbage collector would close the source one day."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            if isinstance(self.body_iterator, AsyncGenerator):
                await self.body_iterator.aclose()


async def read_body(request: Request, kind: Any) -> Any:
    """The request's body, bounded and checked."""
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
        return msgspec.json.decode(b"".join(parts) or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise CommandRejected(f"The request cannot be read: {error}", "usage") from None


async def disconnected(request: Request) -> None:
    """Return when the caller has hung up; its request has been read, so nothing else can come."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def listed(text: str | None) -> list[str]:
    """Words between commas, in capitals."""
    return [word.strip().upper() for word in (text or "").split(",") if word.strip()]


def number(text: str | None, what: str) -> int:
    """A whole number from a query, 0 when there is none."""
    if not text:
        return 0
    if not text.isdecimal() or len(text) > 15:
        raise CommandRejected(f"'{what}' must be a whole number, not '{text}'.", "usage")
    return int(text)


class AuthMiddleware:
    """Turns away everybody but the owner, before anything is read."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if its caller may make it."""
        answer = _turned_away(scope) if scope["type"] == "http" else None
        if answer is not None:
            # Not the path: a stranger could fill the log with lines that all differ.
            logger.warning("refused a request without permission (%d)", answer.status_code)
        try:
            await (answer or self.app)(scope, receive, send)
        except CancelledError:
            # The daemon ends. What has begun breaks off; what has not can still be told.
            with suppress(RuntimeError):
                await refusal_reply(daemon_stopping())(scope, receive, send)


def _turned_away(scope: Scope) -> Response | None:
    """The answer to somebody who may not ask, None for everybody else."""
    entrance = entrance_of(scope)
    if entrance is not None:
        return None if entrance.admits(scope["headers"]) else _unauthorized()
    client = scope.get("client")
    if allowed(client[1] if client else -1):
        return None
    return refusal_reply(CommandRejected("This daemon belongs to another user.", "permission"))


def _unauthorized() -> Response:
    text = "This port requires a token: Authorization: Bearer TOKEN."
    error = {"code": "permission", "message": text, "exit": wire.EXIT_PERMISSION}
    # What a stranger may still be sending is not read, and our version is not his business.
    headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
    return Response(encode({"error": error}), 401, headers, "application/json")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, CommandRejected)
    logger.info("refused %s %s: %s", request.method, request.url.path, error.message)
    return refusal_reply(error)


async def _bad_value(request: Request, error: Exception) -> Response:
    return await _refused(request, CommandRejected(str(error), "usage"))


async def _missing(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    text = f"There is no route {request.method} {request.url.path}."
    code = "not_found" if status == 404 else "usage"
    exit_code = wire.ERRORS[code][1]
    return reply({"error": {"code": code, "message": text, "exit": exit_code}}, status)


async def _left(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


ERROR_HANDLERS: Any = {
    CommandRejected: _refused,
    BadValue: _bad_value,
    HTTPException: _missing,
    ClientDisconnect: _left,
}
