"""Queries: list jobs, explain, history, logs, GPUs, queues, counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from msgspec import UNSET, Struct, convert
from msgspec.structs import replace

from stoker.core.explain.forecast import StartEndEstimate, TimeInterval
from stoker.core.explain.why import explain_job, how_it_ended
from stoker.core.launch.launch import log_paths
from stoker.core.model.job import FINISHED, Job, JobState
from stoker.core.model.spec import Spec
from stoker.core.model.sweep import Sweep
from stoker.core.model.units import THOUSAND
from stoker.core.queue.pending_queue import first_jobs, first_rows
from stoker.core.state.record import history_key
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext, reply_only
from stoker.daemon.nodes.registry import ExecutorRegistry
from stoker.daemon.rights import Access
from stoker.daemon.sweeps.views import sweep_view
from stoker.daemon.views import array_rows
from stoker.daemon.views.alarm import alarm_views, job_alarms
from stoker.daemon.views.explanation import explanation_fields
from stoker.daemon.views.format import estimate_view, iso
from stoker.daemon.views.gpu import gpu_view
from stoker.daemon.views.placement import node_names
from stoker.daemon.views.queue import queue_view
from stoker.daemon.views.visible import limit_alarms, visible_view
from stoker.engine import PLANNING, CommandRejected, CommandResult, Instant
from stoker.schema.alarm import AlarmList
from stoker.schema.gpu import GpuList
from stoker.schema.job import History, UploadView, WhyView
from stoker.schema.queue import QueueList
from stoker.store.port import JobQuery

DEFAULT_PAGE_SIZE = 1000
MAX_JOBS_LISTED = 1_000_000
VIEWS_PER_TURN = 250
"""Views built in one turn of the daemon; a long listing must not delay other requests."""

MAX_DEPENDENTS = 100


class JobFilter(Struct, frozen=True):
    """Which jobs a listing shows."""

    states: list[str]
    user: str
    queue: str
    client: str
    limit: int
    tail: int
    fold: bool = False
    """Show sweeps instead of their trials."""
    arrays: bool = False
    """Show members of an array that are pending or failed alike as one row."""
    never: bool = False
    """Show only pending jobs whose dependency can never be met."""


def check_states(states: list[str], finished: bool = False) -> list[str]:
    """Return names of job states; reject an unknown one, with `finished` also of other jobs."""
    names = [state.value for state in JobState if not finished or state in FINISHED]
    for state in states:
        if state not in names:
            kind = "finished state" if finished else "state"
            text = f"There is no {kind} '{state}'; the {kind}s are {', '.join(names)}."
            raise CommandRejected(text, "usage")
    return states


def list_ids(
    context: RequestContext, selectors: list[str], job_filter: JobFilter,
    general: Callable[[], dict[str, Any]], state: State, now: Instant,
) -> CommandResult:  # fmt: skip
    """Return the ids that a listing shows, how many more there are, and the `general` fields."""
    filtered = bool(job_filter.states or job_filter.user or job_filter.queue or job_filter.client)
    limit = MAX_JOBS_LISTED if filtered else job_filter.limit
    fold = job_filter.fold and not selectors
    arrays = job_filter.arrays and not selectors
    if selectors:
        rows = [[id] for id in context.resolve(selectors, state)]
    elif job_filter.never:
        rows = [[id] for id in sorted(state.never_eligible)]
    else:
        rows = _current_rows(state, limit, fold, arrays and not filtered)
    if filtered:
        ids = [id for (id,) in rows]
        ids = [id for id in ids if _matches(*context.job_and_spec(id, state), job_filter)]
        rows = array_rows.rows([state.jobs[id] for id in ids]) if arrays else [[id] for id in ids]
    total = sum(map(len, rows))
    if not (filtered or selectors or job_filter.never):
        total = state.live + len(state.unacknowledged) - (_folded(state) if fold else 0)
    rows = rows[: job_filter.limit]
    more = max(total - sum(map(len, rows)), 0)
    members = {
        row[0]: array_rows.summary(row, state, _sees_causes(context, row[0], state))
        for row in rows if len(row) > 1
    }  # fmt: skip
    sweeps = [sweep_view(context, state, state.sweeps[id], now) for id in state.boards
              if fold and state.sweeps[id].is_open]  # fmt: skip
    return reply_only(
        {"ids": [row[0] for row in rows], "members": members, "more": more,
         "counts": counts(state, job_filter.user), "now": iso(now.wall), "sweeps": sweeps,
         **general()}
    )  # fmt: skip


def _sees_causes(context: RequestContext, id: int, state: State) -> bool:
    return context.access(state.spec(state.jobs[id]).uid) >= Access.DETAILS


def _matches(job: Job, spec: Spec, job_filter: JobFilter) -> bool:
    return (
        (not job_filter.states or job.state.value in job_filter.states)
        and (not job_filter.user or job.user == job_filter.user)
        and (not job_filter.queue or spec.queue == job_filter.queue)
        and (not job_filter.client or spec.client == job_filter.client)
    )


def list_views(
    context: RequestContext, ids: list[int], tail: int, state: State, now: Instant,
    has_details: bool = False,
) -> CommandResult:  # fmt: skip
    """Return the views of jobs, with their estimates if there is a forecast."""
    job_views = []
    for id in ids:
        job, spec = context.job_and_spec(id, state)
        view = visible_view(context, job, spec, state, now, tail)
        if uploads := _uploads(context, job):
            view = replace(view, uploads=uploads, reason_text=_upload_text(uploads))
        if forecast := context.forecast(id, state, now):
            view = replace(view, **_estimate(forecast))
        if has_details:
            view = replace(view, **_details(context, job, spec, state))
        job_views.append(view)
    return reply_only(job_views)


def _details(context: RequestContext, job: Job, spec: Spec, state: State) -> dict[str, Any]:
    """Return names of variables, never values, and dependents, as far as the caller may see."""
    access = context.access(spec.uid)
    fields: dict[str, Any] = {}
    if access is Access.ALL:
        stored = context.store.secret(spec.environment) or b""
        names = (entry.partition(b"=")[0] for entry in stored.split(b"\0") if entry)
        fields["variables"] = [name.decode("utf-8", "replace") for name in names]
    if access >= Access.DETAILS:
        others = [state.jobs[id] for id in sorted(state.dependents.get(job.id, ()))]
        visible = (other for other in others
                   if context.access(state.spec(other).uid) >= Access.DETAILS)  # fmt: skip
        fields["dependents"] = [other.label for other in islice(visible, MAX_DEPENDENTS)]
    return fields


def _estimate(forecast: StartEndEstimate) -> dict[str, Any]:
    """Return the fields of an estimate; its likely start and end also as columns for lists."""
    view = estimate_view(forecast)
    return {
        "foreseen": view,
        "expected_start": view.start.likely if view.start else None,
        "expected_end": view.end.likely if view.end else None,
    }


def _uploads(context: RequestContext, job: Job) -> list[UploadView]:
    return context.uploads(job) if job.state is JobState.CONFIGURING else []


def _upload_text(uploads: list[UploadView]) -> str:
    return "; ".join(upload.text for upload in uploads)


def _folded(state: State) -> int:
    """Return how many jobs of the listing are shown as part of their sweeps."""
    sweeps = (state.sweeps[id] for id in state.boards)
    failed = sum(state.jobs[id].params is not None for id in state.unacknowledged)
    return sum(sweep.unfinished for sweep in sweeps) + failed


def _current_rows(state: State, limit: int, fold: bool, arrays: bool) -> list[list[int]]:
    """Return running jobs, pending ones in queue order, failures not dismissed, newest first.

    Each job is a row; with `arrays`, members of an array that are alike share one.
    """
    hidden = state.sweeps if fold else {}
    running = sorted(id for id, job in state.running.items() if _is_shown(job, hidden))
    if arrays:
        ready = first_rows(state.pending, state.jobs, limit, hidden)
    else:
        ready = [[job.id] for job in first_jobs(state.pending, state.jobs, limit, hidden)]
    blocked: Iterable[Job] = ()
    if len(ready) < limit and state.live - len(state.running) > len(state.pending):
        blocked = (
            job
            for id, job in state.jobs.items()
            if job.state is JobState.PENDING and id not in state.pending and _is_shown(job, hidden)
        )
    failed = [state.jobs[id] for id in state.unacknowledged if _is_shown(state.jobs[id], hidden)]
    failed.sort(key=lambda job: (job.ended_at or 0.0, job.id), reverse=True)
    others = (
        [*array_rows.rows(blocked), *array_rows.rows(failed)]
        if arrays
        else [[job.id] for job in (*islice(blocked, limit), *failed)]
    )
    return [*([id] for id in running), *ready, *others]


def _is_shown(job: Job, hidden: Mapping[int, Sweep]) -> bool:
    """Return False for a trial of a listing that shows sweeps instead."""
    return not hidden or job.params is None


def counts(state: State, user: str = "") -> dict[str, int]:
    """Return the number of jobs per state; finished jobs only if failed and not dismissed.

    With a user, only that user's failures are counted.
    """
    numbers: dict[str, int] = {}
    for job in state.running.values():
        numbers[job.state.value] = numbers.get(job.state.value, 0) + 1
    pending = state.live - len(state.running)
    if pending:
        numbers["PENDING"] = pending
    for id in state.unacknowledged:
        job = state.jobs[id]
        if user and job.user != user:
            continue
        name = job.state.value
        numbers[name] = numbers.get(name, 0) + 1
    return numbers


def explain(context: RequestContext, selector: str, state: State, now: Instant) -> CommandResult:
    """Return why a job is pending or in its current state."""
    id = context.resolve_one(selector, state)
    job, _ = context.job_and_spec(id, state)
    fields: dict[str, Any] = {
        "id": job.id, "label": job.label, "state": job.state.value, "name": job.name,
    }  # fmt: skip
    view = WhyView[str](**fields)
    if id not in state.jobs:
        return reply_only(replace(view, text=how_it_ended(job)))
    failing = context.faults.sentence(PLANNING) if context.faults is not None else None
    if failing is not None and job.state is JobState.PENDING:
        # An explanation would run the planner code that fails.
        text = f"no job is started because of an internal error: {failing}"
        return reply_only(replace(view, reason="PlanningFailed", text=text))

    def ends(other: Job) -> TimeInterval | None:
        forecast = context.forecast(other.id, state, now)
        return forecast.end if forecast is not None else None

    fields |= explanation_fields(explain_job(state, job, now.wall, now.boot, ends))
    if uploads := _uploads(context, job):
        fields["text"] = _upload_text(uploads)
    view = convert(fields, WhyView[str], from_attributes=True)
    view = replace(view, alarms=limit_alarms(context, job_alarms(state, id), state) or UNSET)
    forecast = context.forecast(id, state, now)
    return reply_only(replace(view, **_estimate(forecast)) if forecast else view)


class LogFiles(Struct, frozen=True):
    """Paths of the output of one attempt."""

    job: int
    attempt: int
    out: str
    err: str | None
    owner: int | None = None
    """The uid of the user whose process reads them, in system mode."""


def jobs_for_log(
    context: RequestContext, selector: str, attempt: int | None, part: int,
    state: State, now: Instant,
) -> CommandResult:  # fmt: skip
    """Return the log files of the first selected job; by default of its last attempt."""
    job, spec = context.job_and_spec(context.resolve_one(selector, state), state)
    context.require(Access.ALL, job, spec)
    number = _last_begun(job) if attempt is None else attempt
    node = _node_of(job, part) or context.node
    out, err = log_paths(replace(job, attempt=number), spec, node, context.logs, part)
    return reply_only(LogFiles(job.id, number, out, err, spec.uid))


def _node_of(job: Job, part: int) -> str | None:
    """Return the node on which a part of a job runs or ran."""
    names = node_names(job)
    if part and part >= len(names):
        has = f"{len(names)} parts, counted from 0" if len(names) > 1 else "one part only"
        raise CommandRejected(f"Job {job.label} has {has}.", "not_found")
    return names[part] if names else None


def _last_begun(job: Job) -> int:
    """Return the last attempt that started, or the current one if none has."""
    is_requeued = job.state is JobState.PENDING and bool(job.past)
    return job.past[-1].attempt if is_requeued else job.attempt


def is_attempt_over(
    id: int, attempt: int, registry: ExecutorRegistry, state: State, now: Instant
) -> CommandResult:
    """Return whether an attempt has ended; if not, have its output copied here more often."""
    job = state.jobs.get(id)
    over = job is None or job.finished or job.attempt > attempt
    if not over:
        registry.follow_log(id)
    return reply_only(over)


def job_for_metrics(
    context: RequestContext, selector: str, state: State, now: Instant
) -> CommandResult:
    """Return id, label and attempt of the only job that a selector names."""
    job, spec = context.job_and_spec(context.resolve_one(selector, state), state)
    context.require(Access.DETAILS, job, spec)
    count = len(context.resolve([selector], state))
    if count > 1:
        text = f"'{selector}' selects {count} jobs; name one of them, such as {job.label}."
        raise CommandRejected(text, "usage")
    return reply_only((job.id, job.label, job.attempt))


def history(
    context: RequestContext, selectors: list[str], query: JobQuery, state: State, now: Instant
) -> CommandResult:
    """Return finished jobs, oldest first."""
    if selectors:
        ids = context.resolve(selectors, state)
        rows = [context.job_and_spec(id, state) for id in ids[: query.limit]]
        return reply_only(History(jobs=[visible_view(context, j, s, state, now) for j, s in rows]))
    visible = query
    if (key := history_key(query.door or "", context.uid)) in state.record.history_cleared:
        hidden_until = state.record.history_cleared[key]
        visible = replace(query, since=max(query.since or 0.0, hidden_until))
    stored = context.store.find_jobs(visible)
    more = context.store.count_jobs(visible) - len(stored)
    return reply_only(
        History(
            jobs=[visible_view(context, row.job, row.spec, None, now) for row in stored],
            more=more,
        )
    )


GpuReadings = Callable[[str], dict[str, dict[str, Any]]]
"""Returns the last readings of a node's GPUs, by UUID."""


def list_gpus(
    readings: GpuReadings, notes: Callable[[], list[str]], state: State, now: Instant
) -> CommandResult:
    """Return every GPU with its use."""
    views = []
    for node in state.cluster.nodes.values():
        if node.on_demand or node.delegated:
            continue
        use = readings(node.name)
        for device in node.types.get("gpu", ()):
            reading = use.get(device.facts.uuid or "", {})
            views.append(gpu_view(node, device, state, now.boot, reading))
    nodes = list(dict.fromkeys([*state.cluster.nodes, *state.record.remotes]))
    absent = () if views else _gpus_on_demand(state)
    note = "; ".join([*notes(), *_handed_over_gpus(state), *absent]) or None
    return reply_only(GpuList(gpus=views, machines=nodes, note=note))


def _gpus_on_demand(state: State) -> Iterator[str]:
    """Yield which clusters provide GPUs when jobs need them."""
    for node in state.cluster.nodes.values():
        if (node.on_demand or node.delegated) and node.types.get("gpu"):
            yield f"{node.name} provides GPUs when jobs need them"


def _handed_over_gpus(state: State) -> Iterator[str]:
    """Yield how many GPUs other schedulers have given to running jobs: which ones, they decide."""
    for node in state.cluster.nodes.values():
        if not node.delegated:
            continue
        amounts = [
            job.placement.gpu_amount
            for job in state.running.values()
            if job.started_at is not None and job.placement and job.placement.node == node.name
        ]
        used = [amount for amount in amounts if amount]
        if used:
            gpus, jobs = sum(used) // THOUSAND, len(used)
            yield (
                f"{node.name}: {gpus} GPU{'s' * (gpus != 1)} of {jobs} job{'s' * (jobs != 1)},"
                " chosen by its scheduler"
            )


def list_alarms(context: RequestContext, state: State, now: Instant) -> CommandResult:
    """Return the active alarms."""
    return reply_only(AlarmList(alarms=limit_alarms(context, alarm_views(state), state)))


def list_queues(state: State, now: Instant) -> CommandResult:
    """Return the named queues."""
    views = [queue_view(queue, state) for queue in state.record.queues.values()]
    return reply_only(QueueList(queues=views))


def parse_iso_time(text: str | None, name: str) -> float | None:
    """Return the Unix time of an ISO time, None without one."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise CommandRejected(f"'{name}' must be an ISO time, not '{text}'.", "usage") from None
