"""Show and set limits of users, groups and queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

from msgspec.structs import replace

from stoker.core.events import Event, LimitsSet
from stoker.core.model.job import Job
from stoker.core.model.limits import ANY_USER_KEY, EACH_USER, Limits, Subject, SubjectLimits
from stoker.core.model.spec import Spec
from stoker.core.model.units import (
    BadValue,
    format_amount,
    format_duration,
    parse_amount,
    parse_duration,
    parse_memory,
)
from stoker.core.state.limits import HOUR_SECONDS, WEEK_HOURS, by_hour
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext, reply_only
from stoker.daemon.submission.checks import pending_jobs
from stoker.daemon.views.format import iso
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import requests as r
from stoker.schema.limits import LimitList, LimitsChange, LimitsView
from stoker.store.port import JobQuery

NONE = ("none", "-1")
"""Values that remove one limit."""
QUEUE_PREFIX, GROUP_PREFIX = "queue:", "@"
MAX_JOBS_READ = 1_000_000


def show(context: RequestContext, state: State, now: Instant) -> CommandResult:
    """Return the limits that concern the caller; administrators see all."""
    entries = sorted(state.record.limits.items())
    views = [limits_view(state, entry, now) for key, entry in entries if _concerns(context, key)]
    return reply_only(LimitList(limits=views))


def _concerns(context: RequestContext, key: str) -> bool:
    if context.is_admin or context.caller is None or key == ANY_USER_KEY:
        return True
    if key.startswith("group:") and context.identities is not None:
        groups = context.identities.user(context.caller.uid).groups | context.caller.leads
        return key in {f"group:{gid}" for gid in groups}
    return key in (f"user:{context.caller.uid}", f"user:{context.caller.name}") or (
        key.startswith(QUEUE_PREFIX)
    )


def change(context: RequestContext, body: r.Limits, state: State, now: Instant) -> CommandResult:
    """Set limits of a user, a group or a queue; the others of its limits stay."""
    context.require_admin("set limits")
    subject = find_subject(context, body.subject)
    entry = state.record.limits.get(subject.key)
    before = entry.limits if entry is not None else Limits()
    given = _parse(body)
    if body.clear and given:
        raise BadValue("--clear removes all limits; set none at the same time.")
    if not body.clear and not given:
        raise BadValue("No limit was given. Name one, such as --max-gpus 4, or --clear.")
    after = Limits() if body.clear else replace(before, **given)
    events: list[Event] = []
    if after != before:
        used = {}
        if after.gpu_hours is not None and before.gpu_hours is None:
            used = gpu_time(context, state, subject, now.wall)
        if subject.type == "group":
            events += context.groups_of_users(state, now.wall)
        events.append(LimitsSet(at=now.wall, subject=subject, limits=after, gpu_time=used))

    def reply(state: State) -> LimitsChange:
        entry = state.record.limits.get(subject.key)
        return LimitsChange(
            subject=subject_text(subject), changed=bool(events),
            limits=limits_view(state, entry, now) if entry is not None else None,
            warnings=_warnings(state, subject),
        )  # fmt: skip

    return CommandResult(events=events, reply=reply)


def find_subject(context: RequestContext, text: str) -> Subject:
    """Return the user, group or queue of a text as typed; raise BadValue if there is none."""
    if text.startswith(QUEUE_PREFIX):
        return Subject("queue", text.removeprefix(QUEUE_PREFIX))
    if context.identities is None:
        raise BadValue(
            "This daemon serves one user, so there are no other users and groups to name; a queue"
            " is written queue:default."
        )
    if text == EACH_USER:
        return Subject("user", EACH_USER)
    name = text.removeprefix(GROUP_PREFIX)
    if text.startswith(GROUP_PREFIX):
        gid = context.identities.gid(name)
        if gid is None:
            raise CommandRejected(f"There is no group '{name}' on this machine.", "not_found")
        return Subject("group", name, gid)
    uid = context.identities.uid(name)
    if uid is None:
        raise CommandRejected(
            f"There is no user '{name}' on this machine; a group is written @{name}, a queue"
            f" queue:{name}.",
            "not_found",
        )
    return Subject("user", name, uid)


def subject_text(subject: Subject) -> str:
    """Return a subject as typed."""
    return {"user": "", "group": GROUP_PREFIX, "queue": QUEUE_PREFIX}[subject.type] + subject.name


def _parse(body: r.Limits) -> dict[str, object]:
    """Return the given limits by field; None: to be removed."""
    parsers: dict[str, Callable[[str], object]] = {
        "max_gpus": lambda text: parse_amount(text, "--max-gpus"),
        "max_running": lambda text: _count(text, "--max-running"),
        "max_pending": lambda text: _count(text, "--max-pending"),
        "max_job_gpus": lambda text: parse_amount(text, "--max-job-gpus"),
        "max_time": lambda text: parse_duration(text, "--max-time"),
        "gpu_hours": lambda text: parse_amount(text, "--gpu-hours-per-week") / 1000,
        "gpu_memory": lambda text: parse_memory(text, "--gpu-memory"),
    }
    texts = {name: getattr(body, name) for name in parsers}
    return {
        name: None if text.strip().lower() in NONE else parsers[name](text)
        for name, text in texts.items()
        if text is not None
    }


def _count(text: str, what: str) -> int:
    if not text.strip().isdecimal() or len(text) > 9:
        raise BadValue(f"{what} '{text}' is not a number of jobs; write 10, or none for no limit.")
    return int(text)


def _warnings(state: State, subject: Subject) -> list[str]:
    if subject.type == "queue" and subject.name not in state.record.queues:
        names = {spec.queue for spec in state.specs.values()} | {"default"}
        if subject.name not in names:
            return [f"queue '{subject.name}' has no jobs and is not defined yet"]
    return []


def limits_view(state: State, entry: SubjectLimits, now: Instant) -> LimitsView:
    """Return limits and what is used of them; for each user, only the limits."""
    subject, limits, key = entry.subject, entry.limits, entry.subject.key
    view = LimitsView(
        subject=subject_text(subject), id=subject.id,
        max_gpus=_amount(limits.max_gpus), max_job_gpus=_amount(limits.max_job_gpus),
        max_running=limits.max_running, max_pending=limits.max_pending,
        max_time=format_duration(limits.max_time) if limits.max_time is not None else None,
        max_time_seconds=limits.max_time,
        gpu_hours_per_week=limits.gpu_hours, gpu_memory=limits.gpu_memory,
    )  # fmt: skip
    if key == ANY_USER_KEY:
        return view
    view.running, gpus, view.gpu_memory_used = state.limits.use(key)
    view.gpus, view.pending = format_amount(gpus), pending_jobs(state, key)
    if limits.gpu_hours is not None:
        view.gpu_hours_used = round(state.limits.gpu_seconds(key, now.wall) / HOUR_SECONDS, 2)
        if view.gpu_hours_used >= limits.gpu_hours:
            view.gpu_hours_free_at = iso(state.limits.frees_at(key, limits.gpu_hours, now.wall))
    return view


def _amount(amount: int | None) -> str | None:
    return format_amount(amount) if amount is not None else None


# -- what is recorded with limits -----------------------------------------------------------


def gpu_time(
    context: RequestContext, state: State, subject: Subject, at: float
) -> dict[str, dict[int, float]]:
    """Return the GPU-seconds of ended attempts in the last week, by user, group or queue."""
    since = at - WEEK_HOURS * HOUR_SECONDS
    rows = context.store.find_jobs(JobQuery(since=since, limit=MAX_JOBS_READ))
    stored = ((row.job, row.spec) for row in rows if row.job.id not in state.jobs)
    jobs: Iterable[tuple[Job, Spec]] = chain(
        ((job, state.spec(job)) for job in state.jobs.values()), stored
    )
    used: dict[str, dict[int, float]] = {}
    for job, spec in jobs:
        for key in _counted_keys(context, subject, spec):
            for past in job.past:
                if past.started_at is None or past.usage is None or past.ended_at <= since:
                    continue
                seconds = max(past.ended_at - past.started_at, 1e-9)
                for hour, part in by_hour(past.started_at, past.ended_at, at):
                    hours = used.setdefault(key, {})
                    hours[hour] = hours.get(hour, 0.0) + past.usage.held * part / seconds
    return used


def _counted_keys(context: RequestContext, subject: Subject, spec: Spec) -> list[str]:
    """Return the keys of a job under which GPU time counts for the limits of a subject."""
    if subject.type == "queue":
        return [subject.key] if spec.queue == subject.name else []
    if spec.uid is None or context.identities is None:
        return []
    if subject.type == "group":
        is_member = subject.id in context.identities.user(spec.uid).groups
        return [subject.key] if is_member else []
    own = f"user:{spec.uid}"
    return [own] if subject.key in (own, ANY_USER_KEY) else []
