"""GPU time of many jobs: records from store and memory, summed by a key."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from stoker.core.model.job import FAILED_STATES, NO_USAGE, GpuUsage, Job
from stoker.core.model.resources import GPU
from stoker.core.model.spec import Spec
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext, reply_only
from stoker.daemon.handlers.usage import Measured, current_usage
from stoker.daemon.settings import AccountingSettings
from stoker.daemon.views.format import request_view
from stoker.engine import CommandResult, Instant
from stoker.schema.usage import UsageGroup
from stoker.store.port import JobQuery

KEYS = ("user", "group", "queue", "sweep", "label", "model", "gpus", "cause", "day")
HOUR = 3600.0
KWH = 3.6e6
"""Joules."""
NONE = "-"
RUNNING = "running"


class AttemptUsage(NamedTuple):
    """The usage of an attempt."""

    at: float
    """Its end; of a running one, now."""
    cause: str
    usage: GpuUsage


class UsageRecord(Struct, frozen=True):
    """What accounting needs of one job."""

    id: int
    user: str
    group: str
    queue: str
    sweep: str
    labels: tuple[str, ...]
    model: str
    gpus: str
    """The number requested."""
    cause: str
    """Why the last attempt ended; of an unfinished job, its state."""
    ended_at: float | None
    failed: bool
    wait: float | None
    attempts: tuple[AttemptUsage, ...]


def finished_records(
    context: RequestContext, since: float, until: float, limit: int, state: State, now: Instant
) -> CommandResult:
    """Return jobs that ended in this time, the newest `limit` of them."""
    end = until if until < math.inf else None
    rows = context.store.find_jobs(JobQuery(since=since, until=end, limit=limit))
    return reply_only([_record(row.job, row.spec, state, ()) for row in rows])


def unfinished_records(measured: Measured, state: State, now: Instant) -> CommandResult:
    """Return unfinished jobs that run or have run."""
    records = []
    for job in state.jobs.values():
        if job.finished or (job.placement is None and job.usage is NO_USAGE):
            continue
        current = current_usage(job, measured, state, now)
        running = (AttemptUsage(now.wall, RUNNING, current),) if current != NO_USAGE else ()
        if running or job.usage != NO_USAGE:
            records.append(_record(job, state.spec(job), state, running))
    return reply_only(records)


def _record(job: Job, spec: Spec, state: State, running: tuple[AttemptUsage, ...]) -> UsageRecord:
    attempts = tuple(
        AttemptUsage(past.ended_at, short_cause(past.cause), past.usage)
        for past in job.past
        if past.usage is not None
    )
    started = next((past.started_at for past in job.past if past.started_at), job.started_at)
    ready = max(job.ready_at or 0.0, job.submitted_at) if not job.retries else job.submitted_at
    return UsageRecord(
        id=job.id,
        user=job.user,
        group=spec.group or NONE,
        queue=spec.queue,
        sweep=str(job.array) if job.params is not None else NONE,
        labels=spec.labels or (NONE,),
        model=_model(job, state),
        gpus=request_view(spec.request).gpus or "0",
        cause=short_cause(job.cause or "") if job.finished else RUNNING,
        ended_at=job.ended_at if job.finished else None,
        failed=job.state in FAILED_STATES,
        wait=max(started - ready, 0.0) if started is not None else None,
        attempts=(*attempts, *running),
    )


def short_cause(cause: str) -> str:
    """Return a cause without its details, such as the job for which an attempt was stopped."""
    return cause.partition(":")[0][:60] or NONE


def _model(job: Job, state: State) -> str:
    """Return the GPU model of the last attempt, as far as its node is still known."""
    part = job.placement
    name = part.node if part is not None else job.last_node
    devices = part.names(GPU) if part is not None else job.last_devices
    node = state.cluster.nodes.get(name or "")
    device = node.by_name.get((GPU, devices[0])) if node is not None and devices else None
    return (device.facts.model if device is not None else None) or NONE


class _Sum(Struct):
    usage: GpuUsage = NO_USAGE
    jobs: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    waits: list[float] = field(default_factory=list)


def summarize(
    records: Iterable[UsageRecord], by: str, since: float, until: float, prices: AccountingSettings
) -> tuple[list[UsageGroup], UsageGroup]:
    """Return the sums of all attempts that ended in this time, by a key, and of all together."""
    sums: dict[str, _Sum] = {}
    total = _Sum()
    for record, attempt in _within(records, since, until):
        for key in _keys(record, by, attempt):
            _add(sums.setdefault(key, _Sum()), record, attempt.usage)
        _add(total, record, attempt.usage)
    groups = [_group(key, each, prices) for key, each in sums.items()]
    if by == "day":
        groups.sort(key=lambda group: group.key)
    else:
        groups.sort(key=lambda group: (-group.gpu_hours, -group.jobs, group.key))
    return groups, _group("total", total, prices)


def hours_by_day(
    records: Iterable[UsageRecord], by: str, since: float, until: float
) -> dict[str, dict[str, float]]:
    """Return GPU-hours by day and key; an attempt belongs to the day on which it ended."""
    days: dict[str, dict[str, float]] = {}
    for record, attempt in _within(records, since, until):
        if attempt.usage.held:
            day = days.setdefault(_day(attempt.at), {})
            for key in _keys(record, by, attempt):
                day[key] = round(day.get(key, 0.0) + attempt.usage.held / HOUR, 4)
    return dict(sorted(days.items()))


def _within(
    records: Iterable[UsageRecord], since: float, until: float
) -> Iterator[tuple[UsageRecord, AttemptUsage]]:
    """Yield the attempts that ended in this time; of a job that held no GPU, one without usage."""
    for record in records:
        attempts = record.attempts
        if not attempts and record.ended_at is not None:
            attempts = (AttemptUsage(record.ended_at, record.cause, NO_USAGE),)
        for attempt in attempts:
            if since <= attempt.at <= until:
                yield record, attempt


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))


def _keys(record: UsageRecord, by: str, attempt: AttemptUsage) -> Sequence[str]:
    if by == "label":
        return record.labels
    if by == "day":
        return (_day(attempt.at),)
    return (attempt.cause if by == "cause" else str(getattr(record, by)),)


def _add(total: _Sum, record: UsageRecord, usage: GpuUsage) -> None:
    total.usage += usage
    if record.id not in total.jobs:
        total.jobs.add(record.id)
        if record.wait is not None:
            total.waits.append(record.wait)
        if record.failed:
            total.failed.add(record.id)


def _group(key: str, each: _Sum, prices: AccountingSettings) -> UsageGroup:
    usage, waits = each.usage, sorted(each.waits)
    kwh = usage.energy / KWH
    cost = usage.held / HOUR * prices.price_gpu_hour + kwh * prices.price_kwh
    return UsageGroup(
        key=key,
        jobs=len(each.jobs),
        failed=len(each.failed),
        gpu_hours=round(usage.held / HOUR, 4),
        wasted_gpu_hours=round(usage.wasted / HOUR, 4),
        measured_gpu_hours=round(usage.measured / HOUR, 4),
        busy_gpu_hours=round(usage.busy / HOUR, 4),
        utilization=round(100 * usage.busy / usage.measured, 1) if usage.measured else None,
        kwh=round(kwh, 4) if usage.energy else None,
        cpu_hours=round(usage.cpu / HOUR, 4) if usage.rss else None,
        rss_peak=usage.rss or None,
        wait_p50=round(waits[len(waits) // 2], 1) if waits else None,
        wait_p90=round(waits[len(waits) * 9 // 10], 1) if waits else None,
        cost=round(cost, 2) if prices.price_gpu_hour or prices.price_kwh else None,
    )
