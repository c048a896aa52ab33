"""New content of a report -> events, published before the attempt's end."""

from __future__ import annotations

import time
from collections.abc import Iterable
from math import inf

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.model.job import Job, JobState, Progress
from stoker.core.state.state import State
from stoker.daemon.reports.attempt_report import AttemptReport
from stoker.daemon.reports.format import TrainingReport, seconds

STOPPED_EXIT_CODE = 75
"""Exit code of processes that stop because they were asked to."""
STOP_GRACE_SECONDS = 30.0
"""Time for an attempt to end after it reported its stop; a wrapper may continue to run."""


def new_events(
    job: Job,
    current: AttemptReport,
    max_epochs: int | None,
    started_at: float | None,
    end: e.Event | None = None,
) -> list[e.Event]:
    """Return events for everything in a report that was not published yet.

    `end` is the event that ends the attempt or one of its parts, if this is the last call.
    """
    report, progress = current.report, job.progress
    events: list[e.Event] = []
    if report.epoch is not None and not (current.began_published or progress.accepts_stop):
        # Not before the first epoch: until then the attempt cannot stop at one either.
        current.began_published = True
        events.append(e.TrainingBegan(at=time.time(), job=job.id, attempt=job.attempt))
    if report.stopped and current.stop_deadline is None:
        current.stop_deadline = time.monotonic() + STOP_GRACE_SECONDS
    published = max(progress.epochs, current.epochs_published)
    done = _epochs_done(report, max_epochs, end)
    metrics = _changed_metrics(current, progress)
    if done <= published and (metrics is None or end is None):
        return events
    if metrics is not None:
        current.metrics_published = metrics
    has_new_epochs, done = done > published, max(done, published)
    current.epochs_published = done
    epoch_seconds, step_seconds = report.take_epoch_times(published, done)
    began = job.started_at if job.started_at is not None else started_at
    warmup = None
    is_first = has_new_epochs and published <= progress.epochs_at_start
    if is_first and began is not None and report.first_epoch_at is not None:
        warmup = seconds(report.first_epoch_at - began)
    events.append(
        e.EpochsCounted(
            at=time.time(), job=job.id, attempt=job.attempt, done=done, seconds=epoch_seconds,
            step=step_seconds, warmup=warmup, metrics=metrics,
            total=report.total if report.total != progress.total else None,
        )
    )  # fmt: skip
    return events


def _epochs_done(report: TrainingReport, max_epochs: int | None, end: e.Event | None) -> int:
    """Return the epochs that are done and saved."""
    done = report.counted
    if isinstance(end, e.ProcessExited) and end.code == 0 and not (end.part or report.stopped):
        done = max(done, report.finished)  # after exit code 0 the last epoch is saved, too
    return done if max_epochs is None else min(done, max_epochs)


def _changed_metrics(current: AttemptReport, progress: Progress) -> dict[str, float] | None:
    """Return the latest numeric metrics, None if they were published."""
    published = progress.metrics if current.metrics_published is None else current.metrics_published
    latest = current.local_metrics.numeric_metrics | current.report.numeric_metrics
    return latest if latest and latest != published else None


def with_stop_flag(event: e.ProcessExited, report: TrainingReport) -> e.ProcessExited:
    """Return the exit of a process, marked if the process stopped on request."""
    stop_agreed = report.stopped or report.stop_at is not None
    stopped = (stop_agreed and event.code == STOPPED_EXIT_CODE) if event.part else report.stopped
    return replace(event, stopped=stopped) if stopped else event


def overdue_stops(reports: Iterable[AttemptReport], state: State, now: float) -> list[e.Event]:
    """Return StopOverdue for attempts that reported their stop but still have processes."""
    events: list[e.Event] = []
    for current in reports:
        job = state.running.get(current.key[0])
        if job is None or current.stop_deadline is None or now < current.stop_deadline:
            continue
        is_current = job.attempt == current.key[1] and job.state is JobState.RUNNING
        if is_current and _is_reachable(job, state):
            current.stop_deadline = inf
            events.append(
                e.PreemptionTimedOut(
                    at=time.time(), job=job.id, attempt=job.attempt, has_saved=True
                )
            )
        else:  # suspended or unreachable: it cannot end now
            current.stop_deadline = now + STOP_GRACE_SECONDS
    return events


def _is_reachable(job: Job, state: State) -> bool:
    """Return True if all nodes of a job are connected."""
    away, placement = state.record.unreachable, job.placement
    return placement is not None and not any(part.node in away for part in placement.parts)
