"""Routes of notifications."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request

from stoker.core.state.state import State
from stoker.daemon.context import reply_only
from stoker.daemon.notifications.notifier import MAIL, Notifier
from stoker.daemon.routes.bridge import RouteContext
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import requests
from stoker.schema.notification import DeliveryReply, TargetList, TargetView


async def list_targets(api: RouteContext, request: Request) -> Any:
    """Return the targets of notifications, and what became of their messages."""

    def handle(state: State, now: Instant) -> CommandResult:
        return reply_only(TargetList(targets=_views(api.daemon.notifier)))

    return await api.ask(handle)


def _views(notifier: Notifier) -> list[TargetView]:
    status = notifier.status
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
        known = ", ".join(notifier.targets) or "none"
        raise CommandRejected(
            f"There is no target '{body.target}' in config.toml; there are: {known}.", "not_found"
        )
    error = await asyncio.to_thread(notifier.send_test, name)
    return DeliveryReply(target=body.target, error=error)
