"""Text of times, commands and requested resources, shared by the views."""

from __future__ import annotations

import time

from stoker.core.explain.forecast import StartEndEstimate, TimeInterval
from stoker.core.model.job import Job
from stoker.core.model.resources import ResourceRequest
from stoker.core.model.spec import Spec
from stoker.core.model.units import format_amount
from stoker.schema.estimate import EstimateView, SpanView
from stoker.schema.job import RequestView


def iso(wall: float | None) -> str | None:
    """Return a Unix time as ISO-8601 in UTC."""
    if wall is None:
        return None
    seconds = int(wall)
    milliseconds = int((wall - seconds) * 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{milliseconds:03d}Z"


def command_text(job: Job, spec: Spec) -> str:
    """Return the command as a user would type it."""
    if isinstance(job.command, str):
        return job.command
    words = job.command or (spec.script_name or "script", *spec.args)
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if word and all(letter.isalnum() or letter in "_@%+=:,./-" for letter in word):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


def request_view(request: ResourceRequest) -> RequestView:
    """Return the requested resources as a user would type them."""
    gpus = request.gpus
    view = RequestView(
        cpus=format_amount(request.cpus) if request.cpus else None,
        memory=request.memory or None,
        resources={name: format_amount(amount) for name, amount in request.named},
        exclusive=request.exclusive,
        machines=request.node_count if request.node_count > 1 else None,
        nodelist=list(request.nodes),
        not_nodes=list(request.not_nodes),
    )
    if gpus:
        view.gpus = format_amount(gpus.amount)
        view.most_gpus = format_amount(gpus.max_amount) if gpus.max_amount else None
        view.model = "|".join(gpus.allowed_models) or None
        view.min_vram, view.gpu_memory = gpus.min_vram, gpus.memory
        view.use_gpus, view.prefer_gpus = list(gpus.required), list(gpus.prefer)
        view.avoid_gpus = list(gpus.avoid)
    return view


def estimate_view(estimate: StartEndEstimate) -> EstimateView[str]:
    """Return when a job starts and ends, with the range and the basis of each."""
    return EstimateView(
        at=iso(estimate.at),
        start=_span(estimate.start),
        end=_span(estimate.end),
        never=estimate.never,
    )


def _span(span: TimeInterval | None) -> SpanView[str] | None:
    if span is None:
        return None
    return SpanView(
        low=iso(span.low),
        likely=iso(span.likely),
        high=iso(span.high),
        kind=span.kind.value,
        basis=span.basis,
    )
