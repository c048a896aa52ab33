"""The route table of the HTTP API, and the application that serves it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import to_builtins
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stoker import wire
from stoker.core.events import Event
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext
from stoker.daemon.handlers import (
    drain,
    edit,
    job_actions,
    limits,
    nodes,
    policies,
    queues,
    reorder,
    reservations,
    shares,
)
from stoker.daemon.http.auth import abort_connection, user_peer
from stoker.daemon.http.codec import (
    ERROR_HANDLERS,
    HEADERS,
    AuthMiddleware,
    StreamedReply,
    parse_number,
    read_body,
    reply,
)
from stoker.daemon.http.codec import encode as json_encode
from stoker.daemon.http.permission import METRICS_PATHS, caller_of
from stoker.daemon.notifications import rules
from stoker.daemon.rights import Need, refusal
from stoker.daemon.routes import (
    admin,
    cluster,
    columns,
    jobs,
    live,
    notifications,
    prometheus,
    reports,
    sessions,
    tokens,
    usage,
    what_if,
)
from stoker.daemon.routes.bridge import RouteContext
from stoker.daemon.routes.event_stream import EventSubscriber
from stoker.daemon.routes.page_files import page_file
from stoker.daemon.views.visible import sees_event
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import act as ac
from stoker.schema import alarm as al
from stoker.schema import daemon as d
from stoker.schema import estimate as e
from stoker.schema import export as x
from stoker.schema import gpu as g
from stoker.schema import job as j
from stoker.schema import limits as li
from stoker.schema import live as v
from stoker.schema import node as n
from stoker.schema import notification as nt
from stoker.schema import queue as q
from stoker.schema import requests as r
from stoker.schema import reservations as rv
from stoker.schema import session as w
from stoker.schema import shares as sh
from stoker.schema import sweep as s
from stoker.schema import training as t
from stoker.schema import usage as u

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from stoker.daemon.control.daemon import Daemon
    from stoker.daemon.http.listeners import TcpListeners

OCTETS = "application/octet-stream"
PROMETHEUS_TEXT = "text/plain"
EVENT_STREAM = "text/event-stream"

RouteHandler = Callable[..., Awaitable[Any]]
"""Takes the RouteContext, the request and, if there is one, the body; returns a reply."""


class ApiRoute(NamedTuple):
    """A row of the route table."""

    method: str
    path: str
    need: Need
    """What it requires of its caller, in system mode."""
    handler: RouteHandler
    """Its docstring describes the route."""
    reply: Any
    """The type of the reply, or the media type of a stream."""
    body: Any = None
    """The type of the body; or its media type, if the handler reads it."""
    query: dict[str, type] = {}  # noqa: RUF012


def command(
    handler: Callable[[RequestContext, Any, State, Instant], CommandResult],
) -> RouteHandler:
    """Return the route handler of a command that needs only its body."""

    @wraps(handler)
    async def handle(api: RouteContext, request: Request, body: Any) -> Any:
        return await api.ask(partial(handler, api.context, body))

    return handle


async def _events(api: RouteContext, request: Request) -> Response:
    """Return all events, as server-sent events."""
    after = request.headers.get("last-event-id") or request.query_params.get("after")
    start = parse_number(after, "after") if after else None
    context = api.context

    def is_visible(event: Event) -> bool:
        return sees_event(context, event, api.daemon.engine.state)

    subscriber = EventSubscriber(
        api.context.store, api.daemon.publisher, api.ask, api.encoded_events,
        abort_connection(request.scope), None if context.is_admin else is_visible,
    )  # fmt: skip
    return StreamedReply(subscriber.stream(start), headers=HEADERS, media_type=EVENT_STREAM)


async def _openapi(api: RouteContext, request: Request) -> Any:
    """Return the OpenAPI document."""
    from stoker.daemon.routes.openapi import document

    return document()


JOB_FILTERS: dict[str, type] = {
    "select": list, "state": str, "user": str, "queue": str, "client": str, "limit": int,
}  # fmt: skip

VIEW, ACT, OWN, ADMIN, HOST = Need

SUBMISSIONS = (jobs.submit, jobs.submit_sweep)
MAX_DISCARDED_BYTES = 1 << 20
"""How much of a refused request is read."""
WITHOUT_CALLER = ("/report", "/sessions/open", "/metrics")
"""Routes whose clients prove something else than their user: an attempt, a code, a token."""

ROUTES = (
    # Jobs
    ApiRoute("GET", "/jobs", VIEW, jobs.list_jobs, j.JobList,
             query=JOB_FILTERS | {"tail": int, "fold": str, "arrays": str, "hook": str,
                    "details": str, "estimate": str, "never": str}),
    ApiRoute("POST", "/jobs", ACT, jobs.submit, j.SubmitReply, r.Submit),
    ApiRoute("GET", "/jobs/columns", VIEW, columns.job_columns, v.JobColumns,
             query={"state": str, "user": str, "queue": str, "label": str, "sweep": int,
                    "text": str, "sort": str, "desc": str, "fold": str, "finished": str,
                    "offset": int, "limit": int}),
    ApiRoute("GET", "/history", VIEW, jobs.history, j.History,
             query=JOB_FILTERS | {"name": str, "since": str, "until": str}),
    ApiRoute("GET", "/acts", VIEW, jobs.acts, ac.ActList, query={"limit": int}),
    ApiRoute("GET", "/usage", VIEW, usage.usage, u.UsageSummary,
             query={"by": str, "since": str, "until": str, "user": str, "queue": str,
                    "days": str}),
    ApiRoute("GET", "/eta", VIEW, jobs.eta, e.EstimateList, query={"select": list, "limit": int}),
    ApiRoute("GET", "/jobs/{selector}/why", VIEW, jobs.why, j.WhyView[str]),
    ApiRoute("GET", "/jobs/{selector}/log", VIEW, jobs.log, OCTETS,
             query={"stream": str, "follow": str, "tail": int, "since": int, "offset": int,
                    "attempt": int, "part": int}),
    ApiRoute("GET", "/jobs/{selector}/metrics", VIEW, jobs.metrics, j.MetricsReply,
             query={"names": str, "points": int}),
    ApiRoute("GET", "/jobs/{selector}/usage", VIEW, jobs.usage, g.UsageReply),
    ApiRoute("POST", "/report", VIEW, reports.receive, t.ReportReply, OCTETS,
             query={"offset": int, "written": str}),
    ApiRoute("POST", "/wait", VIEW, jobs.wait, j.WaitReply, r.Wait),
    ApiRoute("POST", "/cancel", ACT, command(job_actions.cancel), j.ActionReply, r.Cancel),
    ApiRoute("POST", "/kill", ACT, command(job_actions.kill), j.ActionReply, r.Kill),
    ApiRoute("POST", "/pause", ACT, command(job_actions.pause), j.ActionReply, r.Pause),
    ApiRoute("POST", "/resume", ACT, command(job_actions.resume), j.ActionReply, r.Resume),
    ApiRoute("POST", "/hold", ACT, command(job_actions.hold), j.ActionReply, r.Hold),
    ApiRoute("POST", "/release", ACT, command(job_actions.release), j.ActionReply, r.Release),
    ApiRoute("POST", "/retry", ACT, command(job_actions.retry), j.ActionReply, r.Retry),
    ApiRoute("POST", "/edit", ACT, command(edit.edit), j.ActionReply, r.Edit),
    ApiRoute("POST", "/move", ACT, command(reorder.move), j.ActionReply, r.Move),
    ApiRoute("POST", "/jobs/dismiss", ACT, command(job_actions.dismiss), j.ActionReply, r.Dismiss),
    ApiRoute("POST", "/history/hide", ACT, command(queues.hide_history), q.HiddenHistory,
             r.HideHistory),
    # Sweeps
    ApiRoute("GET", "/sweeps", VIEW, jobs.list_sweeps, s.SweepList, query={"all": str}),
    ApiRoute("POST", "/sweeps", ACT, jobs.submit_sweep, s.SweepReply, r.Sweep),
    ApiRoute("GET", "/sweeps/{sweep}", VIEW, jobs.show_sweep, s.SweepDetail),
    ApiRoute("POST", "/sweeps/{sweep}", ACT, jobs.change_sweep, s.SweepView[str], r.ChangeSweep),
    # GPUs, nodes, queues
    ApiRoute("GET", "/gpus", VIEW, cluster.list_gpus, g.GpuList),
    ApiRoute("GET", "/gpus/history", VIEW, cluster.gpu_history, g.GpuHistoryReply,
             query={"minutes": int, "step": int, "gpu": list}),
    ApiRoute("GET", "/alarms", VIEW, cluster.list_alarms, al.AlarmList),
    ApiRoute("POST", "/thresholds", ADMIN, cluster.set_thresholds, g.Thresholds, r.Thresholds),
    ApiRoute("GET", "/nodes", VIEW, cluster.list_nodes, n.NodeList),
    ApiRoute("POST", "/nodes", ADMIN, command(nodes.add), n.NodeAdded, r.AddNode),
    ApiRoute("POST", "/nodes/remove", ADMIN, command(nodes.remove), n.NodeRemoved, r.RemoveNode),
    ApiRoute("POST", "/nodes/refresh", ADMIN, cluster.refresh_nodes, n.NodeList, r.RefreshNodes),
    ApiRoute("POST", "/nodes/check", ADMIN, cluster.check_node, n.NodeCheck, r.CheckNode),
    ApiRoute("POST", "/drain", ADMIN, command(drain.drain), n.DrainReply, r.Drain),
    ApiRoute("POST", "/undrain", ADMIN, command(drain.undrain), n.DrainReply, r.Undrain),
    ApiRoute("GET", "/queues", VIEW, cluster.list_queues, q.QueueList),
    ApiRoute("POST", "/queues", ADMIN, command(queues.define_queue), q.QueueName, r.Queue),
    ApiRoute("DELETE", "/queues/{name}", ADMIN, cluster.delete_queue, q.QueueName),
    ApiRoute("GET", "/limits", VIEW, cluster.list_limits, li.LimitList),
    ApiRoute("POST", "/limits", ADMIN, command(limits.change), li.LimitsChange, r.Limits),
    ApiRoute("GET", "/reservations", VIEW, cluster.list_reservations, rv.ReservationList),
    ApiRoute("POST", "/reservations", ADMIN, command(reservations.make), rv.NewReservation,
             r.Reserve),
    ApiRoute("DELETE", "/reservations/{name}", ADMIN, cluster.cancel_reservation,
             rv.ReservationCancelled),
    ApiRoute("GET", "/shares", VIEW, cluster.list_shares, sh.ShareList),
    ApiRoute("POST", "/shares", ADMIN, command(shares.change), sh.ShareChange, r.SetShare),
    ApiRoute("GET", "/policies", VIEW, cluster.list_policies, q.PolicyList),
    ApiRoute("GET", "/what-if", VIEW, what_if.what_if, dict[str, Any],
             query={"policy": str, "parameter": list, "add": list, "remove": list,
                    "priority": list, "days": int}),
    ApiRoute("POST", "/policies", ADMIN, command(policies.choose), q.PolicyChange, r.Policy),
    # Notifications
    ApiRoute("GET", "/notifications", VIEW, notifications.list_targets, nt.TargetList),
    ApiRoute("POST", "/notifications/test", ADMIN, notifications.send_test, nt.DeliveryReply,
             r.TryTarget),
    ApiRoute("POST", "/notifications/rules", ACT, command(rules.add), nt.RuleView,
             r.AddNotifyRule),
    ApiRoute("DELETE", "/notifications/rules/{id}", ACT, notifications.remove_rule, nt.RuleView),
    # Browser sessions
    ApiRoute("POST", "/sessions", OWN, sessions.create, w.SessionCode, r.CreateSession),
    ApiRoute("POST", "/sessions/open", VIEW, sessions.open_session, w.OpenedSession, r.OpenSession),
    ApiRoute("GET", "/sessions", OWN, sessions.list_sessions, w.SessionList),
    ApiRoute("DELETE", "/sessions/{id}", OWN, sessions.end, w.SessionEnded),
    # Tokens
    ApiRoute("POST", "/tokens", OWN, tokens.create, w.NewToken, r.CreateToken),
    ApiRoute("GET", "/tokens", OWN, tokens.list_tokens, w.TokenList),
    ApiRoute("DELETE", "/tokens/{token}", OWN, tokens.revoke, w.TokenRevoked),
    # The daemon
    ApiRoute("GET", "/export", VIEW, admin.export, x.ExportReply, query={"unheld": str}),
    ApiRoute("GET", "/daemon", VIEW, admin.status, d.DaemonStatus),
    ApiRoute("POST", "/daemon/stop", HOST, admin.stop, d.StopReply, r.Stop),
    ApiRoute("POST", "/listen", HOST, admin.listen, d.ListenerView, r.Listen),
    ApiRoute("DELETE", "/listen/{address}", HOST, admin.unlisten, d.ListenerClosed),
    ApiRoute("POST", "/backup", HOST, admin.backup, d.BackupReply, r.Backup),
    ApiRoute("GET", "/events", VIEW, _events, EVENT_STREAM, query={"after": int}),
    ApiRoute("GET", "/metrics", VIEW, prometheus.metrics, PROMETHEUS_TEXT),
    ApiRoute("GET", "/live", VIEW, live.live, EVENT_STREAM, query={"topics": str, "since": int}),
    ApiRoute("GET", "/openapi.json", VIEW, _openapi, dict[str, Any]),
)  # fmt: skip


def build_app(daemon: Daemon, mode: str, listeners: TcpListeners) -> ASGIApp:
    """Return the application that serves the API of a daemon."""
    api = RouteContext(daemon, mode, listeners)
    routes = [
        Route(wire.PREFIX + route.path, _endpoint(api, route), methods=[route.method])
        for route in ROUTES
    ]
    metrics = next(route for route in ROUTES if route.path == "/metrics")
    routes += [Route("/metrics", _endpoint(api, metrics), methods=["GET"])]
    routes += [Route("/", page_file), Route("/ui/{name}", page_file)]
    app = Starlette(routes=routes, exception_handlers=ERROR_HANDLERS)
    settings = daemon.settings
    open_paths = METRICS_PATHS if settings.metrics.open else ()
    names = frozenset(settings.api.names)
    return AuthMiddleware(
        app, api.sessions, names, open_paths, daemon.report_tokens, daemon.context.identities,
        api.tokens,
    )  # fmt: skip


def _for_caller(api: RouteContext, route: ApiRoute, request: Request) -> RouteContext:
    """Return the context for the user of a request; reject what it may not do.

    To a daemon of one user, only requests with a named token have less rights than that user.
    """
    caller = caller_of(request.scope)
    if route.path in WITHOUT_CALLER or (caller is None and not api.context.is_system):
        return api
    if caller is None:
        raise CommandRejected("This needs a user of this machine.", "permission")
    peer = user_peer(request.scope)
    why = refusal(route.need, caller)
    if why is None and peer is not None and peer.refusal and route.handler in SUBMISSIONS:
        why = f"{caller.name} may not run jobs here: {peer.refusal}."
    if why is not None:
        raise CommandRejected(why, "permission")
    return api.for_caller(caller) if api.context.is_system else api


async def _discard_body(request: Request) -> None:
    """Read what a client still sends: closing before that may reset its connection.

    The client would then see no reply.
    """
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_DISCARDED_BYTES:
            return


def _given(body: Any) -> str:
    """Return the fields of a request that have values, as JSON."""
    fields = to_builtins(body).items()
    return json_encode({key: value for key, value in fields if value is not None}).decode()


def _endpoint(api: RouteContext, route: ApiRoute) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            own = _for_caller(api, route, request)
            if own.context.caller is not None:
                await api.verify(own.context.caller)
        except CommandRejected:
            await _discard_body(request)
            raise
        has_json = route.body is not None and not isinstance(route.body, str)
        body = (await read_body(request, route.body),) if has_json else ()
        if own.context.caller is not None and route.need is not VIEW:
            what = _given(*body) if body and route.need in (ADMIN, HOST) else ""
            own.record_acts(f"{route.method} {request.url.path.removeprefix(wire.PREFIX)}", what)
        value = await route.handler(own, request, *body)
        if route.need is HOST:
            await own.record_change()
        return value if isinstance(value, Response) else reply(value)

    return endpoint
