"""Routes of jobs and sweeps."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from stoker.core.state.state import State
from stoker.daemon.context import reply_only
from stoker.daemon.control.hooks import hook_view, record_path
from stoker.daemon.handlers import queries
from stoker.daemon.handlers.acts import acts_before
from stoker.daemon.handlers.usage import job_usage
from stoker.daemon.handlers.wait import JobWaiter
from stoker.daemon.http.codec import (
    HEADERS,
    StreamedReply,
    is_set,
    parse_number,
    split_words,
    wait_for_disconnect,
)
from stoker.daemon.metrics.store import DEFAULT_POINTS, MAX_POINTS
from stoker.daemon.routes.bridge import RouteContext, reply_future, signal_future
from stoker.daemon.routes.log_stream import follow, part_reader, start_of_tail, start_since
from stoker.daemon.routes.user_files import user_part_reader, with_tails
from stoker.daemon.submission.submit import submit_jobs
from stoker.daemon.sweeps import queries as sweep_queries
from stoker.daemon.sweeps.submit import handle_submit_sweep
from stoker.engine import CommandResult, Instant
from stoker.schema import requests
from stoker.schema.act import ActList, ActView
from stoker.schema.job import HookView, JobList, JobView, MetricsReply
from stoker.store.port import JobQuery

MAX_TAIL_LINES = 100
MIN_POINTS = 8
DEFAULT_HISTORY_SIZE = 100


async def submit(api: RouteContext, request: Request, body: requests.Submit) -> Any:
    """Submit jobs."""
    if body.dry_run:
        await _forecast(api, only_if_pending=True)
    return await api.ask(partial(submit_jobs, api.context, body))


async def list_jobs(api: RouteContext, request: Request) -> Any:
    """Return the queue or selected jobs."""
    query = request.query_params
    job_filter = queries.JobFilter(
        states=queries.check_states(split_words(query.get("state"))),
        user=query.get("user", ""),
        queue=query.get("queue", ""),
        client=query.get("client", ""),
        limit=_page_size(query.get("limit")),
        tail=min(parse_number(query.get("tail"), "tail"), MAX_TAIL_LINES),
        fold=is_set(query.get("fold")),
        arrays=is_set(query.get("arrays")),
        never=is_set(query.get("never")),
    )
    selectors = query.getlist("select")

    def general() -> dict[str, Any]:
        faults = api.daemon.faults.report(all=False)
        return {"seq": api.daemon.engine.seq, "warnings": [*api.warnings(), *faults]}

    if is_set(query.get("estimate")):
        await _forecast(api, only_if_pending=not selectors)
    listing = await api.ask(partial(queries.list_ids, api.context, selectors, job_filter, general))
    ids, members = listing.pop("ids"), listing.pop("members")
    jobs: list[JobView[str]] = []
    for start in range(0, len(ids), queries.VIEWS_PER_TURN):  # between other requests
        page = ids[start : start + queries.VIEWS_PER_TURN]
        jobs += await api.ask(partial(queries.list_views, api.context, page, job_filter.tail,
                                      has_details=is_set(query.get("details"))))  # fmt: skip
    jobs = [replace(job, members=members[job.id]) if job.id in members else job for job in jobs]
    if job_filter.tail and api.context.caller is not None:
        jobs = await with_tails(api, api.context.caller, jobs, job_filter.tail)
    if is_set(query.get("hook")):
        jobs = [replace(job, hook=_hook(job, f"{api.context.directory}/logs")) for job in jobs]
    return JobList(jobs=jobs, **listing)


def _hook(job: JobView[str], logs: str) -> HookView | None:
    return hook_view(record_path(logs, job.id)) if job.result is not None else None


def _page_size(limit: str | None) -> int:
    size = parse_number(limit, "limit") or queries.DEFAULT_PAGE_SIZE
    return min(size, queries.MAX_JOBS_LISTED)


async def _forecast(api: RouteContext, only_if_pending: bool = False) -> None:
    """Wait shortly for a forecast if the reply needs one."""
    ready, on_ready = signal_future()

    def handle(state: State, now: Instant) -> CommandResult:
        if only_if_pending and state.live == len(state.running) and not state.boards:
            return reply_only(0.0)
        return reply_only(api.daemon.forecasts.get().refresh_for_list(state, now, on_ready))

    seconds = await api.ask(handle)
    if seconds:
        await asyncio.wait([ready], timeout=seconds)


async def history(api: RouteContext, request: Request) -> Any:
    """Return finished jobs."""
    query = request.query_params
    size = parse_number(query.get("limit"), "limit") or DEFAULT_HISTORY_SIZE
    job_query = JobQuery(
        states=queries.check_states(split_words(query.get("state")), finished=True) or None,
        user=query.get("user"),
        name=query.get("name"),
        queue=query.get("queue"),
        door=query.get("client"),
        since=queries.parse_iso_time(query.get("since"), "since"),
        until=queries.parse_iso_time(query.get("until"), "until"),
        limit=min(size, queries.MAX_JOBS_LISTED),
    )
    return await api.ask(partial(queries.history, api.context, query.getlist("select"), job_query))


async def acts(api: RouteContext, request: Request) -> Any:
    """Return what users of a system daemon have changed, newest last; to users, their own acts."""
    limit = parse_number(request.query_params.get("limit"), "limit") or DEFAULT_HISTORY_SIZE
    found: list[ActView] = []
    before: int | None = None
    while len(found) < limit:
        page, before = await api.ask(
            partial(acts_before, api.context, before, lambda: api.daemon.engine.seq)
        )
        found[:0] = page
        if before is None:
            break
    return ActList(acts=found[-limit:])


async def why(api: RouteContext, request: Request) -> Any:
    """Return why a job is pending or in its current state."""
    await _forecast(api)
    return await api.ask(partial(queries.explain, api.context, request.path_params["selector"]))


async def eta(api: RouteContext, request: Request) -> Any:
    """Return the expected start and end of jobs; wait shortly for a new forecast."""
    from stoker.daemon.workers.forecast_client import handle_eta

    query = request.query_params
    limit, selectors = _page_size(query.get("limit")), query.getlist("select")
    ready, on_ready = signal_future()

    def refresh(state: State, now: Instant) -> CommandResult:
        return reply_only(api.daemon.forecasts.get().refresh(state, now, on_ready))

    def estimate(state: State, now: Instant) -> CommandResult:
        return handle_eta(api.daemon.forecasts.get(), selectors, limit, state, now)

    await asyncio.wait([ready], timeout=await api.ask(refresh))
    return await api.ask(estimate)


async def log(api: RouteContext, request: Request) -> Response:
    """Return a job's output as it is."""
    query = request.query_params
    selector, number = request.path_params["selector"], query.get("attempt")
    attempt = parse_number(number, "attempt") if number else None
    part = parse_number(query.get("part"), "part")
    files = await api.ask(partial(queries.jobs_for_log, api.context, selector, attempt, part))
    path = files.err if query.get("stream") == "err" and files.err else files.out
    read = part_reader(path) if files.owner is None else user_part_reader(api, files.owner, path)
    if files.owner is not None:
        await read(0, 1)  # once the reply has begun, an error could only break it off
    start = 0
    if query.get("tail"):
        start = await start_of_tail(read, parse_number(query["tail"], "tail"))
    elif query.get("offset"):
        start = parse_number(query["offset"], "offset")
    elif query.get("since"):
        start = await start_since(read, parse_number(query["since"], "since"))
    is_over = None
    if is_set(query.get("follow")):
        # The registry is used by the handler only, in the daemon's thread.
        over = partial(queries.is_attempt_over, files.job, files.attempt, api.daemon.registry)
        is_over = partial(api.ask, over)
    body = follow(read, start, is_over)
    return StreamedReply(body, headers=HEADERS, media_type="application/octet-stream")


async def metrics(api: RouteContext, request: Request) -> Any:
    """Return the metrics that a job has reported, downsampled."""
    query = request.query_params
    selector = request.path_params["selector"]
    job, label, attempt = await api.ask(partial(queries.job_for_metrics, api.context, selector))
    names = [name for name in (query.get("names") or "").split(",") if name]
    points = parse_number(query.get("points"), "points") or DEFAULT_POINTS
    points = min(max(points, MIN_POINTS), MAX_POINTS)
    view = await asyncio.to_thread(api.metrics.read, job, attempt, names, points)
    return MetricsReply(job=job, label=label, **view)


async def usage(api: RouteContext, request: Request) -> Any:
    """Return the GPU time that a job has used."""
    selector = request.path_params["selector"]

    def handle(state: State, now: Instant) -> CommandResult:
        return job_usage(api.context, selector, api.daemon.gpus.recorder.measured, state, now)

    return await api.ask(handle)


async def wait(api: RouteContext, request: Request, body: requests.Wait) -> Any:
    """Reply when jobs have finished."""
    future, on_done = reply_future()
    waiters = api.daemon.waiters
    waiter = JobWaiter(waiters, api.context, body.select, body.any, body.timeout, on_done)
    api.put(waiter)
    disconnected = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait([future, disconnected], return_when=asyncio.FIRST_COMPLETED)
        return future.result() if future.done() else {}
    finally:
        waiter.disconnect()
        disconnected.cancel()


async def submit_sweep(api: RouteContext, request: Request, body: requests.Sweep) -> Any:
    """Create a sweep, or continue one."""
    # Reading the definition may take long, and needs no state.
    handler = await asyncio.to_thread(handle_submit_sweep, api.context, body)
    return await api.ask(handler)


async def list_sweeps(api: RouteContext, request: Request) -> Any:
    """Return the unfinished sweeps, or all."""
    await _forecast(api, only_if_pending=True)
    all = is_set(request.query_params.get("all"))
    return await api.ask(partial(sweep_queries.list_sweeps, api.context, all))


async def show_sweep(api: RouteContext, request: Request) -> Any:
    """Return a sweep with all its trials."""
    await _forecast(api, only_if_pending=True)
    return await api.ask(
        partial(sweep_queries.show_sweep, api.context, request.path_params["sweep"])
    )


async def change_sweep(api: RouteContext, request: Request, body: requests.ChangeSweep) -> Any:
    """Change a sweep."""
    selector = request.path_params["sweep"]
    return await api.ask(partial(sweep_queries.change_sweep, api.context, selector, body))
