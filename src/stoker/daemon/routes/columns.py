"""GET /jobs/columns: a list of up to 200,000 jobs, collected a page at a time."""

from __future__ import annotations

import asyncio
import zlib
from _blake2 import blake2b
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stoker.daemon.handlers import job_list, queries
from stoker.daemon.handlers.job_list import JobOrder, ListFilter
from stoker.daemon.http.codec import HEADERS, is_set, parse_number, split_words
from stoker.daemon.routes.bridge import RouteContext
from stoker.daemon.views.job_columns import CODED_COLUMNS, Dictionary
from stoker.engine import CommandRejected

COMPRESSION_LEVEL = 1
GZIP = 16 + zlib.MAX_WBITS
CACHE_CONTROL = "no-cache"
MAX_WORDS = 8


async def job_columns(api: RouteContext, request: Request) -> Response:
    """Return many jobs as columns."""
    query = request.query_params
    chosen = _filter(query)
    limit = parse_number(query.get("limit"), "limit") or job_list.MAX_LISTED
    limit = min(limit, job_list.MAX_LISTED)
    offset = parse_number(query.get("offset"), "offset")
    order: JobOrder = await api.ask(
        partial(job_list.list_order, chosen.finished, lambda: api.daemon.engine.seq)
    )
    headers = {**HEADERS, "ETag": _etag(api, order, request), "Cache-Control": CACHE_CONTROL,
               "Vary": "Accept-Encoding"}  # fmt: skip
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    ids = await _ids_in_order(api, order)
    counts = order.counts
    if chosen.needs_pass:
        ids, counts = await _matching(api, chosen, ids)
    if is_set(query.get("desc")):
        ids.reverse()
    coders = {name: Dictionary() for name in CODED_COLUMNS}
    pages = await _in_pages(
        api, ids[offset : offset + limit],
        lambda page: partial(job_list.list_columns, api.context, page, coders),
    )  # fmt: skip
    head = {
        "seq": order.seq, "boot": api.boot, "now": round(order.now, 3), "total": len(ids),
        "offset": offset, "counts": counts,
    }  # fmt: skip
    tail = {"dictionary": {name: coder.texts for name, coder in coders.items()}}
    is_compressed = "gzip" in request.headers.get("accept-encoding", "")
    body = await asyncio.to_thread(_encode, head, pages, tail, is_compressed)
    if is_compressed:
        headers["Content-Encoding"] = "gzip"
    return Response(body, 200, headers, "application/json")


def _filter(query: Any) -> ListFilter:
    sort = query.get("sort") or "start"
    if sort not in job_list.SORTS:
        raise CommandRejected(
            f"'sort' must be one of {', '.join(job_list.SORTS)}, not '{sort}'.", "usage"
        )
    return ListFilter(
        states=frozenset(queries.check_states(split_words(query.get("state")))),
        users=_names(query.get("user")),
        queues=_names(query.get("queue")),
        labels=_names(query.get("label")),
        sweep=parse_number(query.get("sweep"), "sweep") or None,
        words=tuple((query.get("text") or "").lower().split()[:MAX_WORDS]),
        fold=is_set(query.get("fold")),
        finished=is_set(query.get("finished")),
        sort=sort,
    )


def _names(text: str | None) -> frozenset[str]:
    return frozenset(name for name in (text or "").split(",") if name)


def _etag(api: RouteContext, order: JobOrder, request: Request) -> str:
    query = blake2b(request.url.query.encode(), digest_size=6).hexdigest()
    return f'W/"{api.boot}-{order.seq}-{query}"'


async def _ids_in_order(api: RouteContext, order: JobOrder) -> list[int]:
    """Return all jobs: running ones, pending ones in scheduling order, then ended ones."""
    pending = await asyncio.to_thread(order.pending_ids)
    others: list[int] = []
    if order.not_eligible:
        known = {*pending, *order.running, *(id for _, id in order.failed)}
        candidates = [id for id in order.not_eligible if id not in known]
        for page in await _in_pages(
            api, candidates, lambda page: partial(job_list.select_not_eligible, page)
        ):
            others += page
    return [*order.running, *pending, *others, *order.failed_ids()]


async def _matching(
    api: RouteContext, chosen: ListFilter, ids: list[int]
) -> tuple[list[int], dict[str, int]]:
    """Return the jobs that match in the order that is asked for, and their number by state."""
    rows: list[tuple[Any, int]] = []
    counts: Counter[str] = Counter()
    for page_rows, page_counts in await _in_pages(
        api, ids, lambda page: partial(job_list.select_matching, api.context, chosen, page)
    ):
        rows += page_rows
        counts.update(page_counts)
    if chosen.sort != "start":
        await asyncio.to_thread(rows.sort)
    return [id for _, id in rows], dict(counts)


async def _in_pages(
    api: RouteContext, ids: Sequence[int], command: Callable[[Sequence[int]], Any]
) -> list[Any]:
    """Return the replies to one command per page, between which the daemon does other work."""
    size = job_list.JOBS_PER_TURN
    return [await api.ask(command(ids[at : at + size])) for at in range(0, max(len(ids), 1), size)]


def _encode(
    head: dict[str, Any], pages: list[dict[str, list[Any]]], tail: dict[str, Any], compress: bool
) -> bytes:
    """Return the reply as JSON, column by column, so that other threads run in between."""
    if not compress:
        return b"".join(_json(head, pages, tail))
    compressor = zlib.compressobj(COMPRESSION_LEVEL, wbits=GZIP)
    parts = [compressor.compress(part) for part in _json(head, pages, tail)]
    return b"".join([*parts, compressor.flush()])


def _json(
    head: dict[str, Any], pages: list[dict[str, list[Any]]], tail: dict[str, Any]
) -> Iterable[bytes]:
    encode = msgspec.json.Encoder().encode
    yield encode(head)[:-1] + b',"columns":{'
    for number, name in enumerate(pages[0]):
        values = (encode(page[name])[1:-1] for page in pages if page[name])
        yield b'%s"%s":[%s]' % (b"," if number else b"", name.encode(), b",".join(values))
    yield b"}," + encode(tail)[1:]
