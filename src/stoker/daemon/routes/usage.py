"""GET /usage: GPU time by user, queue or another key."""

from __future__ import annotations

import asyncio
import math
import time
from functools import partial
from typing import Any

from starlette.requests import Request

from stoker.core.state.state import State
from stoker.daemon.handlers import accounting
from stoker.daemon.handlers.accounting import UsageRecord
from stoker.daemon.handlers.queries import parse_iso_time
from stoker.daemon.http.codec import is_set
from stoker.daemon.routes.bridge import RouteContext
from stoker.daemon.views.format import iso
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema.usage import UsageSummary

JOBS_PER_TURN = 400
"""Jobs that are read from the store in one turn of the daemon: about 10 ms."""
DEFAULT_SECONDS = 30 * 86400.0
ENERGY = "power × time, read about every 2 s while jobs run"


async def usage(api: RouteContext, request: Request) -> Any:
    """Return GPU time, energy and waiting time by a key."""
    query = request.query_params
    by = query.get("by") or "user"
    if by not in accounting.KEYS:
        keys = ", ".join(accounting.KEYS)
        raise CommandRejected(f"'by' must be one of {keys}, not '{by[:40]}'.", "usage")
    now = time.time()
    since, until = parse_period(query.get("since"), query.get("until"), now)
    # Also jobs that ended later: some of their attempts may have ended in this time.
    records = await _finished(api, since)

    def running(state: State, instant: Instant) -> CommandResult:
        measured = api.daemon.gpus.recorder.measured
        return accounting.unfinished_records(measured, state, instant)

    records += await api.ask(running)
    user, queue = query.get("user"), query.get("queue")
    chosen = [
        record for record in records
        if (not user or record.user == user) and (not queue or record.queue == queue)
    ]  # fmt: skip
    settings = api.daemon.settings.accounting
    groups, total = await asyncio.to_thread(
        accounting.summarize, chosen, by, since, until, settings
    )
    summary = UsageSummary(
        by=by, since=iso(since), until=iso(min(until, now)), groups=groups, total=total,
        energy=ENERGY, currency=settings.currency,
    )  # fmt: skip
    if is_set(query.get("days")):
        summary.days = accounting.hours_by_day(chosen, by, since, until)
    return summary


def parse_period(since: str | None, until: str | None, now: float) -> tuple[float, float]:
    """Return the period of a summary in seconds since 1970; default: the last 30 days."""
    start, end = parse_iso_time(since, "since"), parse_iso_time(until, "until")
    # 0 is a time: clients send 1970 for one that is too long ago.
    return (
        now - DEFAULT_SECONDS if start is None else start, now + 1.0 if end is None else end,
    )  # fmt: skip


async def _finished(api: RouteContext, since: float) -> list[UsageRecord]:
    """Return all jobs that ended after a time, newest first, a page at a time."""
    found: dict[int, UsageRecord] = {}
    limit, until = JOBS_PER_TURN, math.inf
    while True:
        page: list[UsageRecord] = await api.ask(
            partial(accounting.finished_records, api.context, since, until, limit)
        )
        new = [record for record in page if record.id not in found]
        found |= {record.id: record for record in new}
        if len(page) < limit:
            return list(found.values())
        # Jobs that ended at the same moment may be on both pages.
        limit = JOBS_PER_TURN if new else limit * 2
        until = math.nextafter(page[0].ended_at or since, math.inf)
