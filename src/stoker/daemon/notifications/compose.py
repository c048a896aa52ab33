"""Messages about jobs, arrays, sweeps and alarms, from the state."""

from __future__ import annotations

from collections import Counter

from stoker.core.model.alarm import CANCEL, PREEMPT, RETRY, Alarm
from stoker.core.model.job import FAILED_STATES, NO_USAGE, GpuUsage, Job, JobState
from stoker.core.model.spec import Spec
from stoker.core.model.sweep import CANCELLED, DONE, FAILED, STOPPED, Sweep
from stoker.core.model.units import approximate_duration, two_digits
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext
from stoker.daemon.notifications.message import Message
from stoker.daemon.views.job import last_lines
from stoker.daemon.views.placement import node_names, open_logs
from stoker.store.port import JobQuery

LOG_LINES = 5
MAX_METRICS, MAX_GPUS = 3, 8
MAX_EVIDENCE_LINES = 20
MAX_MEMBERS = 1000
"""An array with more members has no sums in its message: its rows are read for them."""
RESPONSES = {
    CANCEL: "It is cancelled.", RETRY: "It is ended and repeated, at most three times.",
    PREEMPT: "It gives its GPUs back when a job waits for them.",
}  # fmt: skip
"""What follows from an alarm, in words."""
WORDS = {"gpu_idle": "idle", "gpu_unused": "unused", "nan": "NaN", "ecc": "ECC", "xid": "Xid"}
"""Kinds of alarms in words, where these are not the kind itself."""


def events_of(spec: Spec) -> set[str]:
    """Return everything that targets of a job are notified of."""
    return {event for _, events in spec.notify for event in events}


def job_end(job: Job, spec: Spec, logs: str) -> Message:
    """Return the message about the end of a job."""
    is_failure = job.state in FAILED_STATES
    what = "done" if job.state is JobState.COMPLETED else job.state.value
    lines = [job.cause] if job.cause and is_failure else []
    lines.append(_time_line(job))
    if metrics := job.progress.metrics:
        shown = list(metrics.items())[:MAX_METRICS]
        lines.append(", ".join(f"{name} {value:.4g}" for name, value in shown))
    if job.advice:
        lines.append(job.advice)
    paths = open_logs(job, spec, (node_names(job) or [""])[0], logs)
    log = next(filter(None, (last_lines(path, LOG_LINES) for path in reversed(paths))), [])
    return Message(
        key=f"end/{job.id}/{job.attempt}",
        event="fail" if is_failure else "end",
        title=f"{_name(job)} {what}",
        lines=[line for line in lines if line],
        log=log,
        command=f"stoker retry {job.label}" if is_failure else f"stoker show {job.label}",
        facts=_facts(job, spec),
    )


def job_started(job: Job, spec: Spec) -> Message:
    """Return the message about the start of an attempt."""
    where = ", ".join(node_names(job))
    is_member = job.array is not None and "tasks" not in events_of(spec)
    return Message(
        # Of an array, the first start only.
        key=f"start/array/{job.array}" if is_member else f"start/{job.id}/{job.attempt}",
        event="start",
        title=f"array {job.array} {job.name} started" if is_member else f"{_name(job)} started",
        lines=[f"on {where}"] if where else [],
        command=f"stoker logs -f {job.label}",
        facts=_facts(job, spec),
    )


def job_requeued(job: Job, spec: Spec) -> Message:
    """Return the message about an attempt that has ended and is repeated."""
    past = job.past[-1]
    return Message(
        key=f"requeue/{job.id}/{past.attempt}",
        event="requeue",
        title=f"{_name(job)} is requeued",
        lines=[past.cause],
        command=f"stoker why {job.label}",
        facts=_facts(job, spec),
    )


def array_end(job: Job, spec: Spec, context: RequestContext) -> Message:
    """Return the message about an array, after the end of its last member."""
    array = job.array or job.id
    outcomes = {
        DONE: [JobState.COMPLETED], FAILED: list(FAILED_STATES), CANCELLED: [JobState.CANCELLED]
    }  # fmt: skip
    counts = {
        name: context.store.count_jobs(JobQuery(array=array, states=[s.value for s in states]))
        for name, states in outcomes.items()
    }
    return Message(
        key=f"array/{array}/{job.id}/{job.attempt}",
        event="fail" if counts[FAILED] else "end",
        title=f"array {array} {job.name}: {_counts_text(counts)}",
        lines=_member_lines(context, array, spec.array_size),
        command=f"stoker history {array}",
        facts={"array": array, "name": job.name, "user": job.user, "counts": counts},
    )


def sweep_end(sweep: Sweep, state: State, context: RequestContext) -> Message:
    """Return the message about the end of a sweep."""
    best = []
    if sweep.best is not None:
        trial = state.jobs.get(sweep.best_job or 0)
        by = f" by trial {trial.index}" if trial is not None else ""
        best = [f"best {sweep.metric} {sweep.best:.6g}{by}"]
    return Message(
        key=f"sweep/{sweep.id}/{sweep.ended_at}",
        event="fail" if sweep.counts.get(FAILED) else "end",
        title=f"sweep {sweep.id} {sweep.name}: {_counts_text(sweep.counts)}",
        lines=[*best, *_member_lines(context, sweep.id, sweep.issued)],
        command=f"stoker show {sweep.id}",
        facts={"sweep": sweep.id, "name": sweep.name, "user": sweep.user,
               "counts": dict(sweep.counts), "best": sweep.best},
    )  # fmt: skip


def alarm_raised(alarm: Alarm, state: State) -> Message:
    """Return the message about an alarm."""
    job = state.jobs.get(alarm.job) if alarm.job is not None else None
    word = WORDS.get(alarm.kind, alarm.kind)
    on = f" (GPU {alarm.node}/{alarm.gpu})" if alarm.gpu is not None else ""
    if job is None:
        title, command = f"GPU {alarm.node}/{alarm.gpu}: {word}", "stoker alarms"
        facts: dict[str, object] = {}
    else:
        title, command = f"{_name(job)}: {word}{on}", f"stoker logs {job.label}"
        facts = _facts(job, state.spec(job))
    return Message(
        key=f"alarm/{alarm.key}/{alarm.since:.0f}",
        event="alarm",
        title=title,
        lines=[alarm.text, *([RESPONSES[alarm.action]] if alarm.action in RESPONSES else [])],
        log=alarm.evidence.splitlines()[:MAX_EVIDENCE_LINES],
        command=command,
        facts={**facts, "alarm": alarm.kind, "node": alarm.node, "gpu": alarm.gpu},
    )


def limit_near(job: Job, spec: Spec, seconds: int, left: float) -> Message:
    """Return the message that an attempt will soon reach its time limit."""
    limit = spec.limit or 0
    epochs = job.progress.epochs
    return Message(
        key=f"limit/{job.id}/{job.attempt}/{seconds}/{limit:.0f}",
        event="before-limit",
        title=f"{_name(job)} reaches its time limit in {approximate_duration(left)}",
        lines=[
            f"limit: {approximate_duration(limit)}" + (f"; epochs done: {epochs}" if epochs else "")
        ],
        command=f"stoker edit {job.label} --time TIME",
        facts=_facts(job, spec),
    )


def gpus_free(names: list[str], at: float) -> Message:
    """Return the message that GPUs have become free."""
    more = f" and {len(names) - MAX_GPUS} more" if len(names) > MAX_GPUS else ""
    return Message(
        key=f"free/{at:.0f}", event="free", title=f"GPU free: {', '.join(names[:MAX_GPUS])}{more}",
        command="stoker gpus", facts={"gpus": names},
    )  # fmt: skip


def queue_empty(job: Job) -> Message:
    """Return the message that the queue is empty, since the end of a job."""
    return Message(
        key=f"empty/{job.id}/{job.attempt}", event="empty", title="the queue is empty",
        command="stoker history",
    )  # fmt: skip


def _name(job: Job) -> str:
    return f"job {job.label} {job.name}".strip()


def _facts(job: Job, spec: Spec) -> dict[str, object]:
    return {
        "job_id": job.label, "job_name": job.name, "user": job.user, "queue": spec.queue,
        "state": job.state.value, "code": job.result, "cause": job.cause,
    }  # fmt: skip


def _time_line(job: Job) -> str:
    """Return `1.2 h, 2.4 GPU-h, 83 % busy, 1.1 kWh`."""
    parts = []
    if job.started_at is not None and job.ended_at is not None:
        parts.append(approximate_duration(max(job.ended_at - job.started_at, 0.0)))
    return ", ".join(parts + _usage_parts(job.usage))


def _usage_parts(usage: GpuUsage) -> list[str]:
    if usage.held < 60:
        return []
    parts = [f"{two_digits(usage.held / 3600)} GPU-h"]
    if usage.measured:
        parts.append(f"{100 * usage.busy / usage.measured:.0f} % busy")
    if usage.energy >= 3.6e4:
        parts.append(f"{two_digits(usage.energy / 3.6e6)} kWh")
    return parts


def _member_lines(context: RequestContext, array: int, count: int) -> list[str]:
    """Return GPU time and most frequent cause of the members of an array or a sweep."""
    if count > MAX_MEMBERS:
        return []
    jobs = [row.job for row in context.store.find_jobs(JobQuery(array=array, limit=MAX_MEMBERS))]
    usage = NO_USAGE
    for job in jobs:
        usage += job.usage
    lines = [", ".join(_usage_parts(usage))] if usage.held else []
    causes = Counter(job.cause or "?" for job in jobs if job.state in FAILED_STATES)
    if causes:
        cause, times = causes.most_common(1)[0]
        lines.append(f"most frequent cause: {cause} ×{times}")
    return [line for line in lines if line]


def _counts_text(counts: dict[str, int]) -> str:
    shown = [f"{counts.get(DONE, 0)} {DONE}", f"{counts.get(FAILED, 0)} {FAILED}"]
    return ", ".join(
        shown + [f"{counts[name]} {name}" for name in (STOPPED, CANCELLED) if counts.get(name)]
    )
