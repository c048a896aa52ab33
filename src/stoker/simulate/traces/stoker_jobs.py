"""Jobs on record with stoker, whichever way they were read, as a workload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from msgspec import Struct

from stoker.core.cluster import NodeFacts
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.files import count_jobs, rebase, skipped_notes
from stoker.simulate.workload import TraceJob, Workload

_DEFAULT_SECONDS = 3600.0
"""What a job is taken to need of which nothing is known, where nothing has ever ended."""
_NO_TIME = "never ran"


class JobRecord(Struct, kw_only=True):
    """What is on record of one job."""

    submitted_at: float
    run_seconds: float
    """Seconds in all its attempts so far."""
    is_finished: bool
    user: str
    name: str
    queue: str
    gpus: float
    priority: int = 0
    last_gpus: int | None = None
    """GPUs that an elastic job had last."""
    cpus: float = 0.0
    ram: int = 0
    gpu_memory: int | None = None
    gpu_model: str | None = None
    time_limit: int | None = None
    non_preemptible: bool = False
    epochs_done: int = 0
    epochs: int | None = None
    expected: float | None = None
    """Seconds that its owner thinks it takes."""


def build_workload(
    title: str,
    records: Iterable[JobRecord],
    nodes: Sequence[NodeFacts] = (),
    path: Path | None = None,
) -> Workload:
    """Those that ended as long as they ran, and the others as long as is to be expected."""
    known = list(records)
    likely = DurationEstimator(known)
    counts: Counter[str] = Counter()
    jobs, open_ended, elastic = [], 0, 0
    for each in known:
        if each.is_finished and not each.run_seconds:
            counts[_NO_TIME] += 1
            continue
        open_ended += not each.is_finished
        elastic += bool(each.last_gpus)
        jobs.append(
            to_trace_job(each, each.run_seconds if each.is_finished else likely.seconds(each))
        )
    if not jobs:
        raise TraceError(f"{path or title} has no job that ran; submit some, or name another file.")
    notes = skipped_notes(counts)
    if open_ended:
        notes.append(
            f"{count_jobs(open_ended)} not finished: durations are estimated from epochs, jobs of"
            " the same name or time limits."
        )
    if elastic:
        notes.append(f"{count_jobs(elastic)} elastic: replayed with the GPUs held last.")
    rebase(jobs)
    return Workload(title=title, jobs=jobs, nodes=nodes, notes=notes)


def to_trace_job(each: JobRecord, seconds: float) -> TraceJob:
    """A job that takes so many seconds in all."""
    return TraceJob(
        submit_time=each.submitted_at,
        duration=seconds,
        gpus=max(each.gpus, each.last_gpus or 0.0),
        user=each.user,
        name=each.name,
        queue=each.queue,
        priority=each.priority,
        cpus=each.cpus,
        ram=each.ram,
        gpu_memory=each.gpu_memory,
        time_limit=each.time_limit,
        gpu_models=(each.gpu_model,) if each.gpu_model else (),
        non_preemptible=each.non_preemptible,
    )


class DurationEstimator:
    """How long jobs take that have not ended, by what others took."""

    def __init__(self, records: Iterable[JobRecord]) -> None:
        took: dict[tuple[str, str], list[float]] = {}
        for each in records:
            if each.is_finished and each.run_seconds:
                took.setdefault((each.user, each.name), []).append(each.run_seconds)
        self._of_kind = {kind: median(times) for kind, times in took.items()}
        times = [time for kind in took.values() for time in kind]
        self._of_all = median(times) if times else _DEFAULT_SECONDS

    def seconds(self, job: JobRecord) -> float:
        """In all: what is measured counts more than what is said, and that more than its like."""
        if job.epochs and job.epochs_done and job.run_seconds:
            return max(job.run_seconds * job.epochs / job.epochs_done, job.run_seconds)
        guesses = (
            job.expected,
            self._of_kind.get((job.user, job.name)),
            job.time_limit,
            self._of_all,
        )
        # One that has run longer than its like did is taken to be half done.
        fitting = (guess for guess in guesses if guess and guess > job.run_seconds)
        return next(fitting, 2 * job.run_seconds)
