"""Routes of notifications."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from starlette.requests import Request

from stoker.core.options.notify import MAIL
from stoker.core.state.state import State
from stoker.daemon.context import reply_only
from stoker.daemon.notifications import rules
from stoker.daemon.notifications.notifier import Notifier
from stoker.daemon.routes.bridge import RouteContext
from stoker.daemon.submission.checks import unknown_target
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import requests
from stoker.schema.notification import DeliveryReply, TargetList, TargetView


async def list_targets(api: RouteContext, request: Request) -> Any:
    """Return the targets of notifications, what became of their messages, and the rules."""

    def handle(state: State, now: Instant) -> CommandResult:
        views = TargetList(
            targets=_views(api.daemon.notifier, api.context.is_admin),
            rules=rules.views(api.context, state),
        )
        return reply_only(views)

    return await api.ask(handle)


def _views(notifier: Notifier, is_admin: bool) -> list[TargetView]:
    # Other users' addresses and what their servers say are for administrators.
    status = notifier.status if is_admin else {}
    names = dict.fromkeys([*notifier.targets, *status])
    views = []
    for name in names:
        target, found = notifier.targets.get(name), status.get(name)
        kind = target.kind if target is not None else "email" if name.startswith(MAIL) else "gone"
        view = TargetView(name=name, kind=kind, on=list(target.on) if target is not None else [])
        if found is not None:
            view.sent, view.pending = found.sent, found.pending
            view.failed, view.error = found.failed, found.error
        views.append(view)
    return views


async def send_test(api: RouteContext, request: Request, body: requests.TryTarget) -> Any:
    """Deliver a test message now."""
    notifier = api.daemon.notifier
    name = MAIL + body.target if "@" in body.target else body.target
    if name not in notifier.targets and not name.startswith(MAIL):
        raise CommandRejected(unknown_target(body.target, api.context), "not_found")
    error = await asyncio.to_thread(notifier.send_test, name)
    return DeliveryReply(target=body.target, error=error)


async def remove_rule(api: RouteContext, request: Request) -> Any:
    """Remove a rule of notifications."""
    return await api.ask(partial(rules.remove, api.context, request.path_params["id"]))
