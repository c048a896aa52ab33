"""Routes of browser sessions."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stoker.daemon.http.codec import HEADERS, encode
from stoker.daemon.http.permission import Headers, cookie_name
from stoker.daemon.http.sessions import Session
from stoker.daemon.routes.bridge import RouteContext
from stoker.daemon.views.format import iso
from stoker.engine import CommandRejected
from stoker.schema import requests
from stoker.schema.session import (
    OpenedSession,
    SessionCode,
    SessionEnded,
    SessionList,
    SessionView,
)


async def create(api: RouteContext, request: Request, body: requests.CreateSession) -> Any:
    """Return a code that opens a browser session."""
    session, code = api.sessions.create(
        body.rights, body.seconds, body.note, body.share, body.logs, api.context.uid
    )
    return SessionCode(
        id=session.id, code=code, rights=session.rights, expires=iso(session.expires)
    )


async def open_session(api: RouteContext, request: Request, body: requests.OpenSession) -> Response:
    """Open a browser session with a code; set its cookie."""
    session, cookie = api.sessions.open(body.code)
    reply = OpenedSession(
        id=session.id, rights=session.rights, expires=iso(session.expires),
        user=_user_of(api, session),
    )  # fmt: skip
    response = Response(encode(reply), 200, HEADERS, "application/json")
    secure = request.scope.get("scheme") == "https"
    name = cookie_name(Headers(request.scope).host[1], secure)
    age = int(session.expires - session.created)
    response.set_cookie(
        name, cookie, max_age=age, path="/", secure=secure, httponly=True, samesite="strict"
    )
    return response


def _user_of(api: RouteContext, session: Session) -> str:
    identities = api.context.identities
    if identities is None or session.uid is None:
        return api.context.user
    return identities.user(session.uid).name


async def list_sessions(api: RouteContext, request: Request) -> Any:
    """Return all browser sessions and shared codes; to users of a system daemon, their own."""
    return SessionList(
        sessions=[_view(api, session) for session in api.sessions.all() if _may_end(api, session)]
    )


def _may_end(api: RouteContext, session: Session) -> bool:
    return api.context.is_admin or session.uid == api.context.uid


async def end(api: RouteContext, request: Request) -> Any:
    """End a browser session, or a shared code with all its sessions."""
    id = request.path_params["id"]
    named = [each for each in api.sessions.all() if id in (each.id, each.parent)]
    if not all(_may_end(api, session) for session in named):
        raise CommandRejected("This session belongs to another user.", "permission")
    api.sessions.end(id)
    return SessionEnded(id=id)


def _view(api: RouteContext, session: Session) -> SessionView:
    return SessionView(
        id=session.id, rights=session.rights, note=session.note, share=session.share,
        logs=session.logs, created=iso(session.created), expires=iso(session.expires),
        used=iso(api.sessions.used_at(session)),
    )  # fmt: skip
