"""Change submitted jobs."""

from __future__ import annotations

from math import inf

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.model.dependency import Dependency
from stoker.core.model.job import Job, JobState
from stoker.core.model.spec import Spec
from stoker.core.model.units import BadValue
from stoker.core.options.submit import parse_options
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext, record_spec, reply_only
from stoker.daemon.handlers.job_actions import for_each_job
from stoker.daemon.submission.checks import (
    check_job_limits,
    check_satisfiable,
    check_upload_paths,
    check_user_options,
)
from stoker.daemon.submission.submit import option_context
from stoker.daemon.submission.training import check_directories, check_epochs
from stoker.daemon.views.job import elapsed
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import requests as r
from stoker.schema.job import ActionReply

FIXED_OPTIONS = {"array", "export", "env", "pty", "hold"}
"""Options that cannot be changed after submission."""
RUNNING_OPTIONS = {"time", "priority", "nice"}
"""Options that can be changed while a job runs."""
SCHEDULING_OPTIONS = RUNNING_OPTIONS | {
    "begin", "comment", "deadline", "delay", "dependency", "gpus", "mem", "queue", "requeue",
    "no_requeue", "retries", "cpus",
}  # fmt: skip
"""Options that change when and where a job runs, not what it does in the name of its user."""
CLEARABLE_FIELDS = {"limit", "dependency", "comment", "group", "on_end", "output", "error"}
"""Fields of a Spec that an option can set back to none."""


def edit(context: RequestContext, body: r.Edit, state: State, now: Instant) -> CommandResult:
    """Change what pending jobs request, or the time limit and priority of running ones."""
    fixed = FIXED_OPTIONS & set(body.options)
    if fixed:
        raise CommandRejected(f"--{fixed.pop()} cannot be changed after submission.", "usage")
    if not body.options:
        raise CommandRejected(
            "Nothing to change. Name what to change, such as --priority 5.", "usage"
        )
    overdue: list[str] = []
    what_it_does = sorted(set(body.options) - SCHEDULING_OPTIONS)

    def step(job: Job) -> list[e.Event] | str:
        if job.finished:
            return f"it has ended ({job.state.value.lower()})"
        if what_it_does and not context.is_own(state.spec(job)):
            return f"only {job.user} may change --{what_it_does[0].replace('_', '-')} of it"
        if job.state is JobState.COMPLETING:
            return "it is being ended"
        if job.holding:
            return _edit_running(context, body, state, job, now, overdue)
        return _edit_pending(context, body, state, job, now)

    def sweep_step(sweep: int) -> e.Event:
        text = str(body.options.get("priority"))
        priority = int(text) if text.lstrip("-").isdecimal() else None
        return e.SweepChanged(at=now.wall, sweep=sweep, priority=priority)

    result = for_each_job(context, body.select, state, now, step, sweep_step)
    return reply_only(ActionReply(overdue=overdue)) if body.dry_run else result


def _edit_pending(
    context: RequestContext, body: r.Edit, state: State, job: Job, now: Instant
) -> list[e.Event]:
    spec = state.spec(job)
    options = parse_options(body.options, option_context(context, state, now), before=spec)
    fields = {k: v for k, v in options.fields.items() if v is not None or k in CLEARABLE_FIELDS}
    name = fields.pop("name", None) or job.name
    if _leads_to(state, options.fields.get("dependency"), job.id):
        raise BadValue("A job cannot depend on itself or on a job that depends on it.")
    changed = replace(spec, request=options.request, **fields)
    check_satisfiable(state, state.effective_request(job, changed))
    check_user_options(context, fields)
    if not context.is_admin:
        check_job_limits(changed, context.limits_of(changed, state))
    context.check_priority(options.priority, job.priority)
    if not context.is_system:
        check_upload_paths(changed.directory, fields.get("transfer"))
        check_directories(fields)
    check_epochs(job, fields, spec.training)
    hash, events = record_spec(state, changed, now.wall)
    if changed.dependency is not None:
        events += context.restore_jobs(sorted(changed.dependency.jobs()), state, now.wall)
    sets_begin = {"begin", "delay"} & set(body.options)
    edited = e.JobEdited(
        at=now.wall, job=job.id, spec=hash, name=name,
        priority=options.priority if options.priority is not None else job.priority,
        begin_at=options.begin_at if sets_begin else job.begin_at,
    )  # fmt: skip
    return [*events, edited]


def _edit_running(
    context: RequestContext, body: r.Edit, state: State, job: Job, now: Instant, overdue: list[str]
) -> list[e.Event] | str:
    """Return the events; a job that has used up its new time limit is added to `overdue`."""
    too_late = sorted(set(body.options) - RUNNING_OPTIONS)
    if too_late:
        return (
            f"it is running and --{too_late[0].replace('_', '-')} counts only when a job starts; "
            "of a running job, --time and --priority can be changed"
        )
    spec = state.spec(job)
    options = parse_options(body.options, option_context(context, state, now), before=spec)
    limit = options.fields.get("limit", spec.limit)
    if "limit" in options.fields and limit is not None and (elapsed(job, now) or 0) >= limit:
        overdue.append(job.label)
    context.check_priority(options.priority, job.priority)
    changed = replace(spec, limit=limit)
    if not context.is_admin:
        _check_reservations(state, job, changed)
        check_job_limits(changed, context.limits_of(changed, state))
    hash, events = record_spec(state, changed, now.wall)
    priority = job.priority if options.priority is None else options.priority
    edited = e.JobEdited(at=now.wall, job=job.id, spec=hash, name=job.name, priority=priority)
    return [*events, edited]


def _check_reservations(state: State, job: Job, changed: Spec) -> None:
    """Reject a longer time limit with which a job would run into a reservation of others."""
    limit, before = changed.limit, state.spec(job).limit
    if job.started_at is None or (limit is not None and before is not None and limit <= before):
        return
    end = inf if limit is None else job.started_at + limit + job.slack
    for each in state.record.reservations.values():
        is_others = each.holds(job.parts) and not each.admits(state.limits.keys(changed))
        if is_others and job.started_at < each.begin < end:
            raise CommandRejected(
                f"Job {job.label} would run into the reservation {each.name} of what it uses; an"
                " administrator may allow it.",
                "permission",
            )


def _leads_to(state: State, dependency: Dependency | None, id: int) -> bool:
    """Return True if a chain of dependencies leads to this job."""
    queue = list(dependency.jobs()) if dependency else []
    visited: set[int] = set()
    while queue:
        other = queue.pop()
        if other == id:
            return True
        job = state.jobs.get(other)
        if other in visited or job is None or job.finished:
            continue
        visited.add(other)
        indirect = state.spec(job).dependency
        queue += indirect.jobs() if indirect else ()
    return False
