"""The route table of the HTTP API, and the application that serves it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stoker import wire
from stoker.core.state import State
from stoker.daemon.context import RequestContext
from stoker.daemon.handlers import drain, edit, job_actions, nodes, policies, queues, reorder
from stoker.daemon.http.auth import abort_connection
from stoker.daemon.http.codec import (
    ERROR_HANDLERS,
    HEADERS,
    AuthMiddleware,
    StreamedReply,
    parse_number,
    read_body,
    reply,
)
from stoker.daemon.routes import admin, cluster, jobs
from stoker.daemon.routes.bridge import RouteContext
from stoker.daemon.routes.event_stream import EventSubscriber
from stoker.engine import CommandResult, Instant
from stoker.schema import daemon as d
from stoker.schema import estimate as e
from stoker.schema import gpu as g
from stoker.schema import job as j
from stoker.schema import node as n
from stoker.schema import queue as q
from stoker.schema import requests as r
from stoker.schema import sweep as s

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from stoker.daemon.control.daemon import Daemon
    from stoker.daemon.http.listeners import TcpListeners

OCTETS = "application/octet-stream"
EVENT_STREAM = "text/event-stream"

RouteHandler = Callable[..., Awaitable[Any]]
"""Takes the RouteContext, the request and, if there is one, the body; returns a reply."""


class ApiRoute(NamedTuple):
    """A row of the route table."""

    method: str
    path: str
    handler: RouteHandler
    summary: str
    reply: Any
    """The type of the reply, or the media type of a stream."""
    body: Any = None
    query: dict[str, type] = {}  # noqa: RUF012


def command(
    handler: Callable[[RequestContext, Any, State, Instant], CommandResult],
) -> RouteHandler:
    """Return the route handler of a command that needs only its body."""

    async def handle(api: RouteContext, request: Request, body: Any) -> Any:
        return await api.ask(partial(handler, api.context, body))

    return handle


async def _events(api: RouteContext, request: Request) -> Response:
    """Return all events, as server-sent events."""
    after = request.headers.get("last-event-id") or request.query_params.get("after")
    start = parse_number(after, "after") if after else None
    subscriber = EventSubscriber(
        api.context.store, api.daemon.publisher, api.ask, api.encoded_events,
        abort_connection(request.scope),
    )  # fmt: skip
    return StreamedReply(subscriber.stream(start), headers=HEADERS, media_type=EVENT_STREAM)


async def _openapi(api: RouteContext, request: Request) -> Any:
    """Return the OpenAPI document."""
    from stoker.daemon.routes.openapi import document

    return document()


JOB_FILTERS: dict[str, type] = {
    "select": list, "state": str, "user": str, "queue": str, "client": str, "limit": int,
}  # fmt: skip

ROUTES = (
    # Jobs
    ApiRoute("GET", "/jobs", jobs.list_jobs, "The queue, or selected jobs", j.JobList,
             query=JOB_FILTERS | {"tail": int, "fold": str, "arrays": str, "hook": str,
                                  "estimate": str}),
    ApiRoute("POST", "/jobs", jobs.submit, "Submit jobs", j.SubmitReply, r.Submit),
    ApiRoute("GET", "/history", jobs.history, "Finished jobs", j.History,
             query=JOB_FILTERS | {"name": str, "since": str, "until": str}),
    ApiRoute("GET", "/eta", jobs.eta, "Expected start and end of jobs", e.EstimateList,
             query={"select": list, "limit": int}),
    ApiRoute("GET", "/jobs/{selector}/why", jobs.why,
             "Why a job is pending or in its current state", j.WhyView[str]),
    ApiRoute("GET", "/jobs/{selector}/log", jobs.log, "A job's output, raw", OCTETS,
             query={"stream": str, "follow": str, "tail": int, "since": int, "offset": int,
                    "attempt": int, "part": int}),
    ApiRoute("GET", "/jobs/{selector}/metrics", jobs.metrics,
             "The metrics that a job has reported", j.MetricsReply,
             query={"names": str, "points": int}),
    ApiRoute("POST", "/wait", jobs.wait, "Wait until jobs have finished", j.WaitReply, r.Wait),
    ApiRoute("POST", "/cancel", command(job_actions.cancel), "Cancel jobs", j.ActionReply,
             r.Cancel),
    ApiRoute("POST", "/kill", command(job_actions.kill),
             "Send a signal to jobs, or end them at once", j.ActionReply, r.Kill),
    ApiRoute("POST", "/pause", command(job_actions.pause), "Suspend running jobs", j.ActionReply,
             r.Pause),
    ApiRoute("POST", "/resume", command(job_actions.resume), "Continue suspended jobs",
             j.ActionReply, r.Resume),
    ApiRoute("POST", "/hold", command(job_actions.hold), "Hold pending jobs", j.ActionReply,
             r.Hold),
    ApiRoute("POST", "/release", command(job_actions.release), "Release held jobs",
             j.ActionReply, r.Release),
    ApiRoute("POST", "/retry", command(job_actions.retry), "Requeue finished jobs",
             j.ActionReply, r.Retry),
    ApiRoute("POST", "/edit", command(edit.edit), "Change pending jobs", j.ActionReply, r.Edit),
    ApiRoute("POST", "/move", command(reorder.move), "Change the queue position", j.ActionReply,
             r.Move),
    ApiRoute("POST", "/jobs/dismiss", command(job_actions.dismiss), "Dismiss failures",
             j.ActionReply, r.Dismiss),
    ApiRoute("POST", "/history/hide", command(queues.hide_history),
             "Hide earlier jobs from the history of a client", q.HiddenHistory, r.HideHistory),
    # Sweeps
    ApiRoute("GET", "/sweeps", jobs.list_sweeps, "Unfinished sweeps, or all of them", s.SweepList,
             query={"all": str}),
    ApiRoute("POST", "/sweeps", jobs.submit_sweep, "Create a sweep, or continue one",
             s.SweepReply, r.Sweep),
    ApiRoute("GET", "/sweeps/{sweep}", jobs.show_sweep, "A sweep with all its trials",
             s.SweepDetail),
    ApiRoute("POST", "/sweeps/{sweep}", jobs.change_sweep, "Change a sweep", s.SweepView[str],
             r.ChangeSweep),
    # GPUs, nodes, queues
    ApiRoute("GET", "/gpus", cluster.list_gpus, "GPUs and their use", g.GpuList),
    ApiRoute("POST", "/thresholds", cluster.set_thresholds,
             "Change when a GPU counts as used by other processes", g.Thresholds, r.Thresholds),
    ApiRoute("GET", "/nodes", cluster.list_nodes, "Every node", n.NodeList),
    ApiRoute("POST", "/nodes", command(nodes.add), "Add an SSH node, or change its address",
             n.NodeAdded, r.AddNode),
    ApiRoute("POST", "/nodes/remove", command(nodes.remove), "Remove an SSH node", n.NodeRemoved,
             r.RemoveNode),
    ApiRoute("POST", "/nodes/refresh", cluster.refresh_nodes, "Measure nodes and list all",
             n.NodeList, r.RefreshNodes),
    ApiRoute("POST", "/drain", command(drain.drain), "Drain devices", n.DrainReply, r.Drain),
    ApiRoute("POST", "/undrain", command(drain.undrain), "Undrain devices", n.DrainReply,
             r.Undrain),
    ApiRoute("GET", "/queues", cluster.list_queues, "Named queues", q.QueueList),
    ApiRoute("POST", "/queues", command(queues.define_queue), "Define a named queue",
             q.QueueName, r.Queue),
    ApiRoute("DELETE", "/queues/{name}", cluster.delete_queue, "Delete a named queue",
             q.QueueName),
    ApiRoute("GET", "/policies", cluster.list_policies,
             "The policies of the queues, and all policies", q.PolicyList),
    ApiRoute("POST", "/policies", command(policies.choose), "Set the policy of a queue, or of all",
             q.PolicyChange, r.Policy),
    # The daemon
    ApiRoute("GET", "/daemon", admin.status, "Status of the daemon", d.DaemonStatus),
    ApiRoute("POST", "/daemon/stop", admin.stop, "Stop the daemon", d.StopReply, r.Stop),
    ApiRoute("POST", "/listen", admin.listen, "Open a TCP port; only over the socket",
             d.ListenerView, r.Listen),
    ApiRoute("DELETE", "/listen/{address}", admin.unlisten,
             "Close a TCP port; only over the socket", d.ListenerClosed),
    ApiRoute("POST", "/backup", admin.backup, "Copy the database", d.BackupReply, r.Backup),
    ApiRoute("GET", "/events", _events, "All events, as server-sent events", EVENT_STREAM,
             query={"after": int}),
    ApiRoute("GET", "/openapi.json", _openapi, "This document", dict[str, Any]),
)  # fmt: skip


def build_app(daemon: Daemon, mode: str, listeners: TcpListeners) -> ASGIApp:
    """Return the application that serves the API of a daemon."""
    api = RouteContext(daemon, mode, listeners)
    routes = [
        Route(wire.PREFIX + route.path, _endpoint(api, route), methods=[route.method])
        for route in ROUTES
    ]
    return AuthMiddleware(Starlette(routes=routes, exception_handlers=ERROR_HANDLERS))


def _endpoint(api: RouteContext, route: ApiRoute) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        body = () if route.body is None else (await read_body(request, route.body),)
        value = await route.handler(api, request, *body)
        return value if isinstance(value, Response) else reply(value)

    return endpoint
