"""GPU time of jobs."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from stoker.core.handlers.learning import usage_until
from stoker.core.model.job import NO_USAGE, GpuUsage, Job
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext, reply_only
from stoker.engine import CommandResult, Instant
from stoker.schema.gpu import UsageReply, UsageView

Measured = Callable[[int, int], GpuUsage | None]
"""Returns what was measured of a running attempt."""


def job_usage(
    context: RequestContext, selector: str, measured: Measured, state: State, now: Instant
) -> CommandResult:
    """Return the GPU time of each attempt of a job, and of all together."""
    job, _ = context.job_and_spec(context.resolve_one(selector, state), state)
    attempts = [
        usage_view(past.usage or NO_USAGE, past.attempt, past.started_at, past.ended_at)
        for past in job.past
    ]
    total = job.usage
    if job.placement is not None and job.id in state.jobs:
        current = current_usage(job, measured, state, now)
        total += current
        view = usage_view(current, job.attempt, job.started_at, now.wall)
        view.memory_peak = job.progress.peak
        attempts.append(view)
    return reply_only(
        UsageReply(id=job.id, label=job.label, attempts=attempts, total=usage_view(total))
    )


def current_usage(job: Job, measured: Measured, state: State, now: Instant) -> GpuUsage:
    """Return the usage of a running attempt so far."""
    usage = usage_until(state, job, now.wall)
    latest = measured(job.id, job.attempt)
    if latest is None:
        return usage
    return replace(latest, held=usage.held, cpu=usage.cpu, rss=usage.rss)


def usage_view(
    usage: GpuUsage, attempt: int | None = None, started: float | None = None,
    ended: float | None = None,
) -> UsageView:  # fmt: skip
    """Return a usage; what was not measured is None."""
    is_measured = usage.measured > 0
    seconds = None
    if started is not None and ended is not None:
        seconds = round(max(ended - started, 0.0), 1)
    return UsageView(
        attempt=attempt,
        seconds=seconds,
        gpu_seconds=round(usage.held, 1),
        wasted_gpu_seconds=round(usage.wasted, 1),
        measured_seconds=round(usage.measured, 1),
        busy_gpu_seconds=round(usage.busy, 1),
        energy_joules=round(usage.energy) if usage.energy else None,
        utilization=round(100 * usage.busy / usage.measured, 1) if is_measured else None,
        cpu_seconds=round(usage.cpu, 1) if usage.rss else None,
        rss_peak=usage.rss or None,
    )
