"""Routes of named tokens for remote clients."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from stoker.daemon.http.tokens import DAY_SECONDS, Token
from stoker.daemon.routes.bridge import RouteContext
from stoker.daemon.views.format import iso
from stoker.engine import CommandRejected
from stoker.schema import requests
from stoker.schema.session import NewToken, TokenList, TokenRevoked, TokenView


async def create(api: RouteContext, request: Request, body: requests.CreateToken) -> Any:
    """Return a new token of the caller."""
    context = api.context
    token, text = api.tokens.create(
        body.name, body.rights, body.days * DAY_SECONDS, context.submitter, context.uid
    )
    return NewToken(token=text, **_fields(token))


async def list_tokens(api: RouteContext, request: Request) -> Any:
    """Return the named tokens of the caller; to administrators, those of all users."""
    return TokenList(tokens=[TokenView(**_fields(token)) for token in _visible(api)])


async def revoke(api: RouteContext, request: Request) -> Any:
    """End a token, named by its id or by the name that its user gave it."""
    text = request.path_params["token"]
    found = [token for token in _visible(api) if token.id == text]
    found = found or [
        token for token in _visible(api) if token.name == text and token.uid == api.context.uid
    ]
    if not found:
        raise CommandRejected(
            f"There is no token '{text[:64]}'; see stoker token list.", "not_found"
        )
    api.tokens.revoke(found[0])
    return TokenRevoked(id=found[0].id, name=found[0].name)


def _visible(api: RouteContext) -> list[Token]:
    context = api.context
    return [each for each in api.tokens.all() if context.is_admin or each.uid == context.uid]


def _fields(token: Token) -> dict[str, Any]:
    return {
        "id": token.id, "name": token.name, "user": token.user, "rights": token.rights,
        "created": iso(token.created), "expires": iso(token.expires), "used": iso(token.used),
    }  # fmt: skip
