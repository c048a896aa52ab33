"""GET /metrics: the state of queue, GPUs and daemon for Prometheus."""

from __future__ import annotations

import asyncio
import os
import time

from starlette.requests import Request
from starlette.responses import Response

from stoker.core.state.state import State
from stoker.daemon.context import reply_only
from stoker.daemon.control.counters import Histogram
from stoker.daemon.handlers import exported_metrics as exported
from stoker.daemon.handlers.exported_metrics import DaemonFigures
from stoker.daemon.routes.bridge import RouteContext
from stoker.daemon.views.exposition import OPENMETRICS_TYPE, TEXT_TYPE, Exposition
from stoker.engine import CommandResult, Instant


async def metrics(api: RouteContext, request: Request) -> Response:
    """Return all metrics of the daemon, for Prometheus."""
    openmetrics = "application/openmetrics-text" in request.headers.get("accept", "")
    readers = api.hub.reader_count
    disk = await asyncio.to_thread(os.statvfs, api.context.directory)

    def handle(state: State, now: Instant) -> CommandResult:
        text = Exposition(openmetrics)
        text.gauge("stoker_state_free_bytes", "Free disk space of the state directory.",
                   [({}, disk.f_bavail * disk.f_frsize)])  # fmt: skip
        return reply_only(_exposition(api, text, readers, state, now))

    body = await api.ask(handle)
    return Response(body, 200, media_type=OPENMETRICS_TYPE if openmetrics else TEXT_TYPE)


def _exposition(
    api: RouteContext, text: Exposition, readers: int, state: State, now: Instant
) -> bytes:
    """Return the text; for the daemon's thread only."""
    begin = time.perf_counter()
    daemon, counters = api.daemon, api.daemon.counters
    recorder, registry = daemon.gpus.recorder, daemon.registry
    nodes_up = {registry.local_name: True}
    nodes_up |= {name: node.is_up for name, node in registry.nodes.items()}
    with_users = daemon.settings.metrics.users
    figures = DaemonFigures(
        api.gpu_readings, recorder.energy, nodes_up, counters.usage, counters.before,
        recorder.measured, with_users,
    )  # fmt: skip
    exported.add_build(text)
    exported.add_jobs(text, state, now, with_users)
    exported.add_gpus(text, state, figures)
    exported.add_alarms(text, state)
    exported.add_gpu_time(text, state, now, figures)
    text.counter(
        "stoker_job_submissions_total", "Jobs that were submitted.", [({}, counters.submissions)]
    )
    text.counter(
        "stoker_job_completions_total", "Jobs that have finished, by their last state.",
        [({"outcome": name}, count) for name, count in sorted(counters.completions.items())],
    )  # fmt: skip
    text.counter("stoker_events_total", "Events in the journal.", [({}, counters.events)])
    for name, help_text, histogram in (
        ("stoker_job_wait_seconds", "From eligible to started.", counters.wait),
        ("stoker_job_run_seconds", "From started to ended.", counters.run),
        ("stoker_schedule_cycle_seconds", "Cycles that changed something.", counters.cycle),
        ("stoker_store_commit_seconds", "Commits of the journal.", counters.commit),
        ("stoker_loop_turn_seconds", "Turns of the daemon's main loop.", counters.turn),
    ):
        _add_histogram(text, name, help_text, histogram)
    text.gauge("stoker_readers", "Clients of the live stream.", [({}, readers)])
    text.gauge("stoker_store_error", "Whether the journal cannot be written.",
               [({}, float(daemon.engine.store_error is not None))])  # fmt: skip
    spent = time.perf_counter() - begin
    text.gauge("stoker_scrape_seconds", "Time to collect these metrics.", [({}, spent)])
    return text.text()


def _add_histogram(text: Exposition, name: str, help_text: str, histogram: Histogram) -> None:
    text.histogram(name, help_text, histogram.bounds, histogram.counts, histogram.sum)
