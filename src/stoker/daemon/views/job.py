"""JobView of one job."""

from __future__ import annotations

import os
from collections.abc import Callable

from msgspec import UNSET, convert
from msgspec.json import decode

from stoker import places
from stoker.core.explain.why import reason, unreachable_since
from stoker.core.launch.training_env import of_user
from stoker.core.model.job import FAILED_STATES, NO_PROGRESS, Job, JobState
from stoker.core.model.spec import Spec
from stoker.core.state.state import State
from stoker.daemon.views.alarm import job_alarms
from stoker.daemon.views.format import command_text, iso, request_view
from stoker.daemon.views.placement import devices_of, gpu_uuids, last_logs, node_names, parts_view
from stoker.daemon.views.training import Live, container_view, training_view
from stoker.engine import Instant
from stoker.executors.launch.paths import terminal_path
from stoker.schema.job import ArrayIndex, AttemptView, JobView, ObjectiveView

STATE_CODES = {
    JobState.PENDING: "PD",
    JobState.CONFIGURING: "CF",
    JobState.QUEUED: "Q",
    JobState.RUNNING: "R",
    JobState.SUSPENDED: "S",
    JobState.COMPLETING: "CG",
    JobState.COMPLETED: "CD",
    JobState.FAILED: "F",
    JobState.CANCELLED: "CA",
    JobState.TIMEOUT: "TO",
    JobState.OUT_OF_MEMORY: "OOM",
    JobState.NODE_FAIL: "NF",
    JobState.DEADLINE: "DL",
}
"""Slurm's short names of the states, in lists."""

MAX_TAIL_BYTES = 8192


def job_view(
    job: Job, spec: Spec, state: State | None, now: Instant, logs: str, tail: int = 0,
    live: Callable[[int], Live] = lambda _: {},
) -> JobView[str]:  # fmt: skip
    """Return a job; `live` returns what is measured of a running one but not stored."""
    code, text = reason(state, job, now.wall) if state and job.id in state.jobs else (None, None)
    retry, warning, if_unreachable = spec.retry, spec.early_signal, spec.if_unreachable
    silent = unreachable_since(state, job) if state is not None else {}
    names, seconds = node_names(job), elapsed(job, now)
    out, err = last_logs(job, spec, names[0] if names else "", logs)
    reads_tail = tail and job.state in FAILED_STATES and spec.uid is None
    measured = live(job.id) if _trains(job, spec) else {}
    return JobView(
        id=job.id,
        label=job.label,
        name=job.name,
        user=job.user,
        state=job.state.value,
        state_code=STATE_CODES[job.state],
        reason=code,
        reason_text=text,
        queue=spec.queue,
        group=spec.group,
        labels=list(spec.labels),
        comment=spec.comment,
        account=spec.account,
        priority=job.priority,
        command=command_text(job, spec),
        directory=spec.directory,
        shell=spec.shell,
        request=request_view(spec.request),
        array_index=ArrayIndex(id=job.array, index=job.index) if job.array is not None else None,
        sweep=job.array if job.params is not None else None,
        params=decode(job.params) if job.params is not None else None,
        objective=convert(job.score, ObjectiveView, from_attributes=True) if job.score else None,
        depends=_depends(spec),
        retry=f"{retry.limit} on {','.join(retry.on)}" if retry.limit else None,
        if_unreachable=f"restart:{if_unreachable}s" if if_unreachable is not None else None,
        deadline_at=iso(spec.deadline_at),
        on_end=spec.on_end,
        warning_signal=f"{warning.signal}@{warning.seconds}" if warning else None,
        feed=spec.feed,
        client=spec.client,
        container=container_view(spec.container),
        restartable=spec.requeueable,
        node=names[0] if names else None,
        nodes=names,
        unreachable=bool(silent),
        unreachable_since=iso(min(silent.values())) if silent else None,
        devices=devices_of(job),
        parts=parts_view(job, spec, state, logs),
        gpu_uuids=gpu_uuids(job.placement, state) if job.placement else [],
        attempt=job.attempt,
        pid=job.pid,
        submitted_at=iso(job.submitted_at),
        started_at=iso(job.started_at),
        ended_at=iso(job.ended_at) if job.finished else None,
        begin_at=iso(job.begin_at),
        elapsed=seconds,
        time_limit=spec.limit,
        time_left=_time_left(job, spec.limit, seconds),
        exit_code=job.code,
        signal=job.signal,
        cause=job.cause,
        result=job.result,
        termination_note=job.note,
        dismissed=job.seen,
        attempts=_attempts(job),
        training=training_view(job, spec, state, now.wall, logs, measured),
        log=out,
        error_log=err,
        log_bytes=places.file_size(out) if spec.uid is None else 0,
        external_id=UNSET if job.external_id is None else job.external_id,
        hosts=UNSET if job.external_id is None else list(job.hosts),
        attach=_terminal(job, spec, logs) if spec.pty and job.state is JobState.RUNNING else UNSET,
        alarms=(job_alarms(state, job.id) if state is not None else []) or UNSET,
        advice=job.advice or UNSET,
        tail=_tail(out, err, tail) if reads_tail else UNSET,
    )


def _terminal(job: Job, spec: Spec, logs: str) -> str | None:
    """Return the socket of a job's terminal, once there is one; that of another user is private."""
    if spec.uid is not None:
        home = of_user(os.path.dirname(logs), spec)
        return terminal_path(f"{home}/run", job.id, job.attempt)
    path = terminal_path(os.path.dirname(places.socket_path()), job.id, job.attempt)
    return path if os.path.exists(path) else None


def _tail(out: str, err: str | None, lines: int) -> list[str]:
    return last_lines(err if err and places.file_size(err) else out, lines)


def _trains(job: Job, spec: Spec) -> bool:
    return job.holding and (spec.training is not None or job.progress is not NO_PROGRESS)


def _attempts(job: Job) -> list[AttemptView[str]]:
    return [
        AttemptView(
            attempt=past.attempt,
            started_at=iso(past.started_at),
            ended_at=iso(past.ended_at),
            cause=past.cause,
            exit_code=past.code,
        )
        for past in job.past
    ]


def elapsed(job: Job, now: Instant) -> float | None:
    """Return the seconds that the attempt has run, without pauses; None before it started."""
    if job.started_at is None:
        return None
    if job.finished and job.ended_at is not None:
        return round(max(job.ended_at - job.started_at, 0.0), 3)
    if job.started_boot is None or not job.holding:
        return None
    until = job.paused_boot if job.paused_boot is not None else now.boot
    return round(max(until - job.started_boot - job.slack, 0.0), 3)


def _time_left(job: Job, limit: int | None, elapsed: float | None) -> float | None:
    if limit is None or elapsed is None or not job.holding:
        return None
    return round(max(limit - elapsed, 0.0), 3)


def _depends(spec: Spec) -> str | None:
    if spec.dependency is None:
        return None
    clauses = [
        f"{clause.kind}:{':'.join(map(str, clause.jobs))}"
        + (f"+{clause.delay // 60}" if clause.delay else "")
        for clause in spec.dependency.clauses
    ]
    return ("?" if spec.dependency.any else ",").join(clauses)


def last_lines(path: str, count: int) -> list[str]:
    """Return the last lines of a log as text."""
    try:
        with open(path, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - MAX_TAIL_BYTES, 0))
            data = file.read()
    except OSError:
        return []
    return as_lines(data, count)


def as_lines(data: bytes, count: int) -> list[str]:
    """Return the last lines of the end of a log as text."""
    # A progress bar rewrites its line: only what would still be on the screen counts.
    lines = [line.rpartition(b"\r")[2] for line in data.rstrip(b"\r\n").split(b"\n")]
    return [line.decode("utf-8", "replace") for line in lines[-count:] if line.strip()]
