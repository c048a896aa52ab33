"""JobRecord: jobs recorded by stoker, and the workload made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from msgspec import Struct

from stoker.core.model.resources import NodeFacts
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.files import count_jobs, rebase, skipped_notes, title_of
from stoker.simulate.workload import TraceJob, Workload

_DEFAULT_SECONDS = 3600.0
"""Duration of a job without any estimate if no job has ended."""
_NO_TIME = "never ran"


class JobRecord(Struct, kw_only=True):
    """Record of one job."""

    submitted_at: float
    run_seconds: float
    """Seconds in all attempts so far."""
    is_finished: bool
    user: str
    name: str
    queue: str
    gpus: float
    priority: int = 0
    last_gpus: int | None = None
    """GPUs of the last attempt of an elastic job."""
    cpus: float = 0.0
    ram: int = 0
    gpu_memory: int | None = None
    gpu_model: str | None = None
    time_limit: int | None = None
    non_preemptible: bool = False
    epochs_done: int = 0
    epochs: int | None = None
    expected: float | None = None
    """Duration stated by the user."""


def build_workload(
    path: Path, records: Iterable[JobRecord], nodes: Sequence[NodeFacts] = ()
) -> Workload:
    """Return a workload: finished jobs with their run time, the others with an estimate."""
    records = list(records)
    durations = DurationEstimator(records)
    counts: Counter[str] = Counter()
    jobs, open_ended, elastic = [], 0, 0
    for record in records:
        if record.is_finished and not record.run_seconds:
            counts[_NO_TIME] += 1
            continue
        open_ended += not record.is_finished
        elastic += bool(record.last_gpus)
        seconds = record.run_seconds if record.is_finished else durations.seconds(record)
        jobs.append(to_trace_job(record, seconds))
    if not jobs:
        raise TraceError(f"{path} has no job that ran; submit some, or name another file.")
    notes = skipped_notes(counts)
    if open_ended:
        notes.append(unfinished_note(open_ended))
    if elastic:
        notes.append(f"{count_jobs(elastic)} elastic: replayed with the GPUs held last.")
    rebase(jobs)
    return Workload(title=title_of(path), jobs=jobs, nodes=nodes, notes=notes)


def unfinished_note(count: int) -> str:
    """Return the note on jobs whose durations are estimated."""
    return (
        f"{count_jobs(count)} not finished: durations are estimated from epochs, jobs of the same"
        " name or time limits."
    )


def to_trace_job(record: JobRecord, seconds: float) -> TraceJob:
    """Return a trace job with this duration."""
    return TraceJob(
        submit_time=record.submitted_at,
        duration=seconds,
        gpus=max(record.gpus, record.last_gpus or 0.0),
        user=record.user,
        name=record.name,
        queue=record.queue,
        priority=record.priority,
        cpus=record.cpus,
        ram=record.ram,
        gpu_memory=record.gpu_memory,
        time_limit=record.time_limit,
        gpu_models=(record.gpu_model,) if record.gpu_model else (),
        non_preemptible=record.non_preemptible,
    )


class DurationEstimator:
    """Estimates the duration of unfinished jobs from finished ones."""

    def __init__(self, records: Iterable[JobRecord]) -> None:
        took: dict[tuple[str, str], list[float]] = {}
        for record in records:
            if record.is_finished and record.run_seconds:
                took.setdefault((record.user, record.name), []).append(record.run_seconds)
        self._by_name = {kind: median(times) for kind, times in took.items()}
        times = [time for kind in took.values() for time in kind]
        self._overall = median(times) if times else _DEFAULT_SECONDS

    def seconds(self, job: JobRecord) -> float:
        """Return the total duration: by epochs, as stated, by name, by limit, or of all jobs."""
        if job.epochs and job.epochs_done and job.run_seconds:
            return max(job.run_seconds * job.epochs / job.epochs_done, job.run_seconds)
        by_name = self._by_name.get((job.user, job.name))
        guesses = (job.expected, by_name, job.time_limit, self._overall)
        # A job that exceeds all estimates is assumed to be half done.
        fitting = (guess for guess in guesses if guess and guess > job.run_seconds)
        return next(fitting, 2 * job.run_seconds)
