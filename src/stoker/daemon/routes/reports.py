"""POST /report: training reports of pods, with the token of their attempt instead of a user's."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from stoker.core.state.state import State
from stoker.daemon.http.codec import HEADERS, error_reply, parse_number
from stoker.daemon.http.permission import REPORT_SOURCE
from stoker.daemon.routes.bridge import RouteContext
from stoker.daemon.training.report_receiver import ReportUpload
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.executors.report_tokens import ReportSource
from stoker.schema.training import ReportReply

MAX_BYTES = 256 * 1024
"""Bytes of a report in one request."""


async def receive(api: RouteContext, request: Request) -> ReportReply | Response:
    """Take the next bytes of a training report; the token is that of an attempt in a pod."""
    source: ReportSource | None = request.scope.get("state", {}).get(REPORT_SOURCE)
    if source is None:
        return _denied(
            CommandRejected("This route requires the token of an attempt.", "permission")
        )
    if not api.report_rates.may_send(source):
        raise CommandRejected("These are too many reports. Send them less often.", "queue_full")
    query = request.query_params
    offset = parse_number(query.get("offset"), "offset")
    written = frozenset((query.get("written") or "").split(","))
    upload = ReportUpload(source, offset, await _body(request), written)
    try:
        reply_value: ReportReply = await api.ask(partial(_receive, api, upload))
    except CommandRejected as rejection:
        if rejection.code != "permission":
            raise
        return _denied(rejection)
    return reply_value


def _receive(api: RouteContext, upload: ReportUpload, state: State, now: Instant) -> CommandResult:
    is_recorded = not api.daemon.engine.has_unrecorded_events
    return api.daemon.reports.receive(upload, is_recorded, state)


async def _body(request: Request) -> bytes:
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > MAX_BYTES:
            raise CommandRejected(f"A request has at most {MAX_BYTES} bytes.", "too_large")
    return data


def _denied(rejection: CommandRejected) -> Response:
    return error_reply(rejection, 401, HEADERS | {"WWW-Authenticate": "Bearer"})
