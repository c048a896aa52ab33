"""The API: one route per verb, each a few lines between HTTP and the loop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stoker import __version__, places, wire
from stoker.core.state import State
from stoker.daemon import listen_address as addresses
from stoker.daemon import settings
from stoker.daemon.context import CommandHandler, reply_only
from stoker.daemon.control.daemon import Daemon
from stoker.daemon.control.hooks import hook_view, record_path
from stoker.daemon.handlers import (
    drain,
    edit,
    job_actions,
    nodes,
    policies,
    queries,
    queues,
    reorder,
)
from stoker.daemon.handlers.wait import JobWaiter
from stoker.daemon.http import credentials as keys
from stoker.daemon.http.auth import entrance_of, hang_up
from stoker.daemon.http.codec import (
    ERROR_HANDLERS,
    HEADERS,
    AuthMiddleware,
    Stream,
    disconnected,
    listed,
    number,
    read_body,
    reply,
)
from stoker.daemon.metrics.store import DEFAULT_POINTS, MAX_POINTS, MetricsStore
from stoker.daemon.nodes import local_node as machine
from stoker.daemon.routes.event_stream import Batches, EventSubscriber
from stoker.daemon.routes.log_stream import follow, start_of_tail, start_since, whole
from stoker.daemon.runtime.command_queue import QueuedCommand
from stoker.daemon.submission.submit import handle_submit
from stoker.daemon.sweeps import queries as sweep_queries
from stoker.daemon.sweeps.submit import handle_submit_sweep
from stoker.daemon.views.format import iso
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.probes.gpu_reading import Reading
from stoker.schema import requests
from stoker.schema.job import HookView, JobView
from stoker.store.port import JobQuery, StoreError
from stoker.store.select import check_store, select_store

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from stoker.daemon.http.listeners import TcpListeners

logger = logging.getLogger(__name__)

NOTHING = "Nothing was running."
PROBE_SECONDS = 1.0
"""How long a reply about GPUs waits for a fresh look at them."""
Sent = TypeVar("Sent", bound=requests.Submission)


class Api:
    """The handlers, with the loop they talk to.

    They run in a thread of their own, and never look at the state or at anything else that the
    loop's thread changes: whatever they want to know, they ask the loop for.
    """

    def __init__(self, loop: Daemon, mode: str, ports: TcpListeners) -> None:
        self.loop, self.desk, self.mode, self.ports = loop, loop.desk, mode, ports
        self.series = MetricsStore(os.path.dirname(loop.desk.logs))
        self.batches = Batches()

    async def ask(self, decide: CommandHandler) -> Any:
        """Put a question or a wish to the engine and await its answer."""
        future, done = self._way_back()
        self.loop.commands.put(QueuedCommand(decide, done))
        return await future

    @staticmethod
    def _way_back() -> tuple[asyncio.Future[Any], Callable[[Any, CommandRejected | None], None]]:
        here = asyncio.get_running_loop()
        future: asyncio.Future[Any] = here.create_future()

        def settle(value: Any, refusal: CommandRejected | None) -> None:
            if future.done():
                return
            if refusal is not None:
                future.set_exception(refusal)
            else:
                future.set_result(value)

        def done(value: Any, refusal: CommandRejected | None) -> None:
            here.call_soon_threadsafe(settle, value, refusal)

        return future, done

    # -- jobs ---------------------------------------------------------------------------

    async def submit(self, request: Request) -> Response:
        """New jobs."""
        body = _at_home(await read_body(request, requests.Submit))
        if body.dry_run:
            await self._forecast(queue=True)
        return reply(await self.ask(handle_submit(self.desk, body)))

    async def jobs(self, request: Request) -> Response:
        """The queue, or selected jobs: built in pages, so that the loop goes on in between."""
        query = request.query_params
        wanted = queries.JobFilter(
            states=queries.check_states(listed(query.get("state"))),
            user=query.get("user", ""),
            queue=query.get("queue", ""),
            client=query.get("client", ""),
            limit=_page_size(query.get("limit")),
            tail=min(number(query.get("tail"), "tail"), 100),
            fold=query.get("fold") in ("1", "true"),
            arrays=query.get("arrays") in ("1", "true"),
        )
        words = query.getlist("select")

        def general() -> dict[str, Any]:
            facts = self._general()
            return {**facts, "warnings": [*facts["warnings"], *self.loop.faults.report(all=False)]}

        if query.get("estimate") in ("1", "true"):
            await self._forecast(queue=not words)
        found = await self.ask(queries.list_ids(self.desk, words, wanted, general))
        ids, members, jobs = found.pop("ids"), found.pop("members"), []
        for start in range(0, len(ids), queries.VIEWS_PER_TURN):
            page = ids[start : start + queries.VIEWS_PER_TURN]
            jobs += await self.ask(queries.list_views(self.desk, page, wanted.tail))
        jobs = [replace(job, members=members[job.id]) if job.id in members else job for job in jobs]
        if query.get("hook") in ("1", "true"):
            jobs = [replace(job, hook=self._hook(job)) for job in jobs]
        return reply({"jobs": jobs, **found})

    def _hook(self, job: JobView[str]) -> HookView | None:
        outcome = hook_view(record_path(self.desk.logs, job.id)) if job.result is not None else None
        return HookView(**outcome) if outcome is not None else None

    async def _forecast(self, queue: bool = False) -> None:
        """Wait a moment for a forecast, if one is needed; for the queue, if a job is pending."""
        over, done = self._way_back()

        def look(state: State, now: Instant) -> CommandResult:
            if queue and state.live == len(state.running) and not state.boards:
                return reply_only(0.0)
            told = self.loop.outlooks.get().refresh_for_list(state, now, lambda: done(None, None))
            return reply_only(told)

        seconds = await self.ask(look)
        if seconds:
            await asyncio.wait([over], timeout=seconds)

    def _general(self) -> dict[str, Any]:
        """What is said about the daemon itself; only for the loop's own thread."""
        loop = self.loop
        notes = (
            loop.engine.store_error,
            loop.store.durability_warning(),
            loop.sync.error,
            loop.watch.note,
        )
        more = [text for text in notes if text]
        warnings = [*loop.store.warnings(), *more, *loop.executor.holds.problems.values()]
        return {"seq": loop.engine.seq, "warnings": warnings}

    async def sweep(self, request: Request) -> Response:
        """A sweep, new or again."""
        body = _at_home(await read_body(request, requests.Sweep))
        decide = await asyncio.to_thread(handle_submit_sweep, self.desk, body)
        return reply(await self.ask(decide))

    async def sweeps(self, request: Request) -> Response:
        """Unfinished sweeps, or all of them."""
        await self._forecast(queue=True)
        all = request.query_params.get("all") in ("1", "true")
        return reply(await self.ask(sweep_queries.list_sweeps(self.desk, all)))

    async def one_sweep(self, request: Request) -> Response:
        """A sweep with all its trials."""
        await self._forecast(queue=True)
        return reply(
            await self.ask(sweep_queries.show_sweep(self.desk, request.path_params["sweep"]))
        )

    async def change_sweep(self, request: Request) -> Response:
        """Change a sweep."""
        body = await read_body(request, requests.ChangeSweep)
        word = request.path_params["sweep"]
        return reply(await self.ask(sweep_queries.change_sweep(self.desk, word, body)))

    async def why(self, request: Request) -> Response:
        """Why a job is pending or in its current state."""
        await self._forecast()
        return reply(await self.ask(queries.explain(self.desk, request.path_params["selector"])))

    async def eta(self, request: Request) -> Response:
        """Expected start and end of jobs; a new forecast is waited for, but not for long."""
        from stoker.daemon.workers.forecast_client import handle_eta

        query = request.query_params
        limit = _page_size(query.get("limit"))
        over, done = self._way_back()

        def look(state: State, now: Instant) -> CommandResult:
            return reply_only(
                self.loop.outlooks.get().refresh(state, now, lambda: done(None, None))
            )

        await asyncio.wait([over], timeout=await self.ask(look))
        words = query.getlist("select")

        def tell(state: State, now: Instant) -> CommandResult:
            return handle_eta(self.loop.outlooks.get(), self.desk, words, limit)(state, now)

        return reply(await self.ask(tell))

    async def log(self, request: Request) -> Response:
        """A job's output, raw."""
        query = request.query_params
        word, asked = request.path_params["selector"], query.get("attempt")
        attempt = number(asked, "attempt") if asked else None
        part = number(query.get("part"), "part")
        found = await self.ask(queries.jobs_for_log(self.desk, word, attempt, part))
        path = found.err if query.get("stream") == "err" and found.err else found.out
        start = 0
        if query.get("tail"):
            start = start_of_tail(path, number(query["tail"], "tail"))
        elif query.get("offset"):
            start = number(query["offset"], "offset")
        elif query.get("since"):
            start = start_since(path, number(query["since"], "since"))
        body = whole(path, start)
        if query.get("follow") in ("1", "true"):
            over = queries.is_attempt_over(found.job, found.attempt, self.loop.fleet)
            body = follow(path, start, lambda: self.ask(over))
        return Stream(body, headers=HEADERS, media_type="application/octet-stream")

    async def metrics(self, request: Request) -> Response:
        """The metrics that a job has reported, as curves."""
        query = request.query_params
        word = request.path_params["selector"]
        job, label, attempt = await self.ask(queries.job_for_metrics(self.desk, word))
        names = [name for name in (query.get("names") or "").split(",") if name]
        points = min(max(number(query.get("points"), "points") or DEFAULT_POINTS, 8), MAX_POINTS)
        view = await asyncio.to_thread(self.series.read, job, attempt, names, points)
        return reply({"job": job, "label": label, **view})

    async def wait(self, request: Request) -> Response:
        """Wait until jobs have finished."""
        body = await read_body(request, requests.Wait)
        future, done = self._way_back()
        waiting = JobWaiter(self.loop.waits, self.desk, body.select, body.any, body.timeout, done)
        self.loop.commands.put(waiting)
        watcher = asyncio.ensure_future(disconnected(request))
        try:
            await asyncio.wait([future, watcher], return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                return reply({})
            return reply(future.result())
        finally:
            waiting.disconnect()
            watcher.cancel()

    # -- machine ------------------------------------------------------------------------

    async def gpus(self, request: Request) -> Response:
        """Every GPU with its use."""
        watch, fleet = self.loop.watch, self.loop.fleet
        fresh, done = self._way_back()

        def look(state: State, now: Instant) -> CommandResult:
            watch.keep_fresh(lambda: done(None, None))
            return nodes.refresh_reachable(fleet)(state, now)

        await self.ask(look)
        await asyncio.wait([fresh], timeout=PROBE_SECONDS)

        def figures(node: str) -> dict[str, dict[str, Any]]:
            return watch.latest if node == self.desk.node else nodes.gpu_readings(fleet, node)

        return reply(
            await self.ask(queries.list_gpus(figures, lambda: nodes.gpu_notes(fleet, watch.note)))
        )

    async def nodes(self, request: Request) -> Response:
        """Every machine."""
        return reply(await self.ask(nodes.list_nodes(self.loop.fleet, self.loop.since)))

    async def refresh_nodes(self, request: Request) -> Response:
        """All nodes and their state."""
        body = await read_body(request, requests.RefreshNodes)
        fleet = self.loop.fleet
        asked = await self.ask(nodes.refresh(fleet, body.names))
        for _ in range(nodes.MAX_REFRESH_SECONDS * 20):
            if await self.ask(nodes.refreshed(fleet, asked)):
                break
            await asyncio.sleep(0.05)
        return reply(await self.ask(nodes.list_nodes(fleet, self.loop.since)))

    async def queues(self, request: Request) -> Response:
        """The named queues."""
        return reply(await self.ask(queries.list_queues(self.desk)))

    async def delete_queue(self, request: Request) -> Response:
        """Delete a named queue."""
        return reply(await self.ask(queues.delete_queue(self.desk, request.path_params["name"])))

    async def policies(self, request: Request) -> Response:
        """What the queues go by."""
        return reply(await self.ask(policies.show(self.desk)))

    async def history(self, request: Request) -> Response:
        """Finished jobs."""
        query = request.query_params
        wanted = JobQuery(
            states=queries.check_finished_states(listed(query.get("state"))),
            user=query.get("user"),
            name=query.get("name"),
            queue=query.get("queue"),
            door=query.get("client"),
            since=queries.parse_iso_time(query.get("since"), "since"),
            until=queries.parse_iso_time(query.get("until"), "until"),
            limit=min(number(query.get("limit"), "limit") or 100, 1_000_000),
        )
        return reply(await self.ask(queries.history(self.desk, query.getlist("select"), wanted)))

    # -- daemon -------------------------------------------------------------------------

    async def status(self, request: Request) -> Response:
        """Status of the daemon."""
        return reply(await self.ask(self._status(self.ports.views())))

    def _status(self, listeners: list[dict[str, Any]]) -> CommandHandler:
        def decide(state: State, now: Instant) -> CommandResult:
            loop = self.loop
            return reply_only(
                {
                    "pid": os.getpid(),
                    "version": __version__,
                    "api": wire.API_VERSION,
                    "since": iso(loop.since),
                    "socket": places.socket_path(),
                    "state_dir": os.path.dirname(self.desk.logs),
                    "log": places.daemon_log(),
                    "mode": self.mode,
                    "draining": loop.lifecycle.is_draining,
                    "counts": queries.counts(state),
                    "policy": policies.summary(state),
                    "gpus": sum(
                        len(node.types.get("gpu", ())) for node in state.cluster.nodes.values()
                    ),
                    "node": self.desk.node,
                    **nodes.summary(loop.fleet, state),
                    "store": self.desk.place,
                    "listeners": listeners,
                    "thresholds": loop.watch.thresholds.view(),
                    **self._general(),
                    "faults": loop.faults.report(),
                }
            )

        return decide

    async def stop(self, request: Request) -> Response:
        """End, in one of three ways."""
        body = await read_body(request, requests.Stop)
        if body.check:
            config = settings.load()
            machine.build_node_facts(Reading(), body.gpus, body.resources)
            if body.db is not None:
                await asyncio.to_thread(_check_store, body.db, config.store.url)
            if body.listen is not None:
                addresses.split(body.listen)
        running = await self.ask(lambda state, now: reply_only(sorted(state.running)))
        logger.info("%s requested (mode %s)", "restart" if body.check else "stop", body.mode)
        if body.mode == "cancel":
            live = await self.ask(self._start_no_more)
            if live:
                await self.ask(job_actions.cancel(self.desk, requests.Cancel(select=live)))
            text = f"{_counted(running)} being cancelled." if running else NOTHING
        elif running:
            text = (
                f"{_counted(running)} left running; the next daemon recovers them."
                if body.mode == "leave"
                else f"{_counted(running)} still running; the daemon stops when they have ended."
            )
        else:
            text = NOTHING
        asyncio.get_running_loop().call_later(0.05, self._end, body.mode)
        return reply({"running": running, "text": text})

    def _start_no_more(self, state: State, now: Instant) -> CommandResult:
        """Start nothing in place of what is about to be cancelled; return what runs."""
        self.loop.lifecycle.prepare_stop()
        return reply_only([str(id) for id in state.running])

    def _end(self, mode: str) -> None:
        def decide(state: State, now: Instant) -> CommandResult:
            if mode == "leave":
                self.loop.lifecycle.stop()
            else:
                self.loop.lifecycle.drain()
            return reply_only(None)

        self.loop.commands.put(QueuedCommand(decide, lambda *_: None))

    async def listen(self, request: Request) -> Response:
        """Open a TCP port."""
        _owner_only(request)
        body = await read_body(request, requests.Listen)
        if body.tls:
            # Making one takes a moment, in which others are served.
            await asyncio.to_thread(keys.certificate, self.ports.state)
        address = self.ports.add(body.address, body.tls, body.note)
        return reply(self.ports.open[address].view())

    async def unlisten(self, request: Request) -> Response:
        """Close a TCP port."""
        _owner_only(request)
        return reply({"address": self.ports.remove(request.path_params["address"])})

    async def thresholds(self, request: Request) -> Response:
        """Change when a GPU counts as used by other processes, until this daemon ends."""
        body = await read_body(request, requests.Thresholds)
        watch, fleet = self.loop.watch, self.loop.fleet

        def decide(state: Any, now: Any) -> Any:
            fleet.look_now(list(fleet.machines))
            return reply_only(watch.set_thresholds(body.load, body.memory, body.processes))

        return reply(await self.ask(decide))

    async def backup(self, request: Request) -> Response:
        """Copy the database while it is in use."""
        body = await read_body(request, requests.Backup)

        def decide(state: Any, now: Any) -> Any:
            try:
                return reply_only({"path": body.path, "bytes": self.desk.store.backup(body.path)})
            except StoreError as error:
                raise CommandRejected(str(error), "failed") from None

        return reply(await self.ask(decide))

    async def events(self, request: Request) -> Response:
        """All events, as server-sent events."""
        after = request.headers.get("last-event-id") or request.query_params.get("after")
        start = number(after, "after") if after else None
        reader = EventSubscriber(self.loop, self.ask, self.batches, hang_up(request.scope))
        return Stream(reader.stream(start), headers=HEADERS, media_type="text/event-stream")

    async def openapi(self, request: Request) -> Response:
        """This API, described."""
        from stoker.daemon.routes.openapi import document

        return reply(document())


def _page_size(limit: str | None) -> int:
    size = number(limit, "limit") or queries.DEFAULT_PAGE_SIZE
    return min(size, queries.MAX_JOBS_LISTED)


def _at_home(body: Sent) -> Sent:
    """A submission from another machine begins with the environment that is here."""
    if body.own_environment:
        body.environment = {**os.environ, **body.environment}
    return body


def _owner_only(request: Request) -> None:
    """Who has come in by a port does not open or close ports."""
    if entrance_of(request.scope) is not None:
        raise CommandRejected(
            "Ports can be opened and closed only over the socket of this host.", "permission"
        )


def _check_store(said: str, configured: str | None) -> None:
    """Refuse a store that the next daemon could not open."""
    choice = select_store(said, configured, None, os.environ)
    try:
        check_store(choice)
    except StoreError as error:
        exit_code = getattr(error, "exit_code", wire.EXIT_FAILED)
        codes = {code: name for name, (_, code) in wire.ERRORS.items()}
        raise CommandRejected(str(error), codes.get(exit_code, "failed")) from None


def _counted(running: list[int]) -> str:
    return "1 job is" if len(running) == 1 else f"{len(running)} jobs are"


def _act(api: Api, handler: Any, body_type: Any) -> Callable[[Request], Awaitable[Response]]:
    """A route for a verb whose handler takes a body and decides."""

    async def route(request: Request) -> Response:
        body = await read_body(request, body_type)
        return reply(await api.ask(handler(api.desk, body)))

    return route


VERBS: dict[str, tuple[Any, Any]] = {
    "cancel": (job_actions.cancel, requests.Cancel),
    "kill": (job_actions.kill, requests.Kill),
    "pause": (job_actions.pause, requests.Pause),
    "resume": (job_actions.resume, requests.Resume),
    "hold": (job_actions.hold, requests.Hold),
    "release": (job_actions.release, requests.Release),
    "retry": (job_actions.retry, requests.Retry),
    "edit": (edit.edit, requests.Edit),
    "move": (reorder.move, requests.Move),
    "jobs/dismiss": (job_actions.dismiss, requests.Dismiss),
    "drain": (drain.drain, requests.Drain),
    "undrain": (drain.undrain, requests.Undrain),
    "queues": (queues.define_queue, requests.Queue),
    "policies": (policies.choose, requests.Policy),
    "history/hide": (queues.hide_history, requests.HideHistory),
    "nodes": (nodes.add, requests.AddNode),
    "nodes/remove": (nodes.remove, requests.RemoveNode),
}


def application(loop: Daemon, mode: str, ports: TcpListeners) -> ASGIApp:
    """The whole API over one loop."""
    api = Api(loop, mode, ports)
    get: list[tuple[str, Any]] = [
        ("/jobs", api.jobs),
        ("/jobs/{selector}/why", api.why),
        ("/eta", api.eta),
        ("/jobs/{selector}/log", api.log),
        ("/jobs/{selector}/metrics", api.metrics),
        ("/sweeps", api.sweeps),
        ("/sweeps/{sweep}", api.one_sweep),
        ("/gpus", api.gpus),
        ("/nodes", api.nodes),
        ("/queues", api.queues),
        ("/policies", api.policies),
        ("/history", api.history),
        ("/daemon", api.status),
        ("/events", api.events),
        ("/openapi.json", api.openapi),
    ]
    post: list[tuple[str, Any]] = [
        ("/jobs", api.submit),
        ("/sweeps", api.sweep),
        ("/sweeps/{sweep}", api.change_sweep),
        ("/wait", api.wait),
        ("/daemon/stop", api.stop),
        ("/backup", api.backup),
        ("/listen", api.listen),
        ("/thresholds", api.thresholds),
        ("/nodes/refresh", api.refresh_nodes),
        *((f"/{verb}", _act(api, handler, body)) for verb, (handler, body) in VERBS.items()),
    ]
    routes = [Route(wire.PREFIX + path, handler, methods=["GET"]) for path, handler in get]
    routes += [Route(wire.PREFIX + path, handler, methods=["POST"]) for path, handler in post]
    delete = [("/queues/{name}", api.delete_queue), ("/listen/{address}", api.unlisten)]
    routes += [Route(wire.PREFIX + path, handler, methods=["DELETE"]) for path, handler in delete]
    return AuthMiddleware(Starlette(routes=routes, exception_handlers=ERROR_HANDLERS))
