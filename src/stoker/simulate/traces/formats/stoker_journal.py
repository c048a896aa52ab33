"""stoker's journal: finished, running and pending jobs."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import MsgspecError

from stoker.core.measurement.estimator import attained, profile_key
from stoker.core.model.job import FINISHED, NO_PROGRESS, Job
from stoker.core.model.resources import NodeFacts
from stoker.core.model.spec import Spec
from stoker.core.model.units import THOUSAND
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.files import as_plain_file
from stoker.simulate.traces.stoker_jobs import JobRecord, build_workload
from stoker.simulate.workload import Workload
from stoker.store import codec
from stoker.store.migrations import SCHEMA

_WAL_MODE = b"\2\2"
"""Bytes 18 and 19 of an SQLite database in WAL mode."""
_JOBS = "SELECT jobs.data, specs.data FROM jobs JOIN specs ON specs.hash = jobs.spec ORDER BY id"


def read(path: Path) -> Workload:
    """Read all jobs of a journal file or a backup of it, read-only."""
    try:
        with as_plain_file(path) as plain, _open_read_only(plain) as db:
            _check_version(path, db)
            now = float(db.execute("SELECT coalesce(max(at), 0) FROM events").fetchone()[0])
            records = [_record(job, spec, now) for job, spec in _pairs(db)]
            nodes = _nodes(db)
    except (OSError, sqlite3.Error, MsgspecError) as error:
        raise TraceError(
            f"{path} is not a readable stoker journal ({error}); create a copy of yours with: "
            "stoker db backup FILE"
        ) from error
    return build_workload(path, records, nodes)


@contextlib.contextmanager
def _open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database read-only, also in a read-only directory."""
    uri = f"{path.resolve().as_uri()}?mode=ro"
    with path.open("rb") as file:
        logs = file.read(20)[18:] == _WAL_MODE
    if logs and not Path(f"{path}-wal").exists():
        # Not in use; otherwise SQLite would create a write-ahead log and leave it behind.
        uri += "&immutable=1"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
        yield db


def _check_version(path: Path, db: sqlite3.Connection) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA:
        raise TraceError(
            f"{path} was written by a newer stoker (schema {version}, this one supports {SCHEMA}); "
            "upgrade stoker."
        )


def _pairs(db: sqlite3.Connection) -> Iterator[tuple[Job, Spec]]:
    specs: dict[bytes, Spec] = {}  # all jobs of a bulk submission share one
    for job, data in db.execute(_JOBS):
        spec = specs.get(data)
        if spec is None:
            spec = specs[data] = codec.decode_spec(data)
        yield codec.decode_job(job), spec


def _nodes(db: sqlite3.Connection) -> Sequence[NodeFacts]:
    row = db.execute("SELECT value FROM meta WHERE key = 'rest'").fetchone()
    return list(codec.decode_rest(row[0]).nodes.values()) if row else ()


def _record(job: Job, spec: Spec, now: float) -> JobRecord:
    request, gpu_request, training = spec.request, spec.request.gpus, spec.training
    reported, machines = job.progress is not NO_PROGRESS, spec.request.node_count
    return JobRecord(
        submitted_at=job.submitted_at,
        run_seconds=_ran(job, now),
        is_finished=job.state in FINISHED,
        user=job.user,
        name=profile_key(job, spec).removeprefix(f"{job.user}: "),
        queue=spec.queue,
        priority=job.priority,
        gpus=request.gpu_amount / THOUSAND,
        last_gpus=len(job.last_devices)
        if gpu_request is not None and gpu_request.max_amount is not None
        else None,
        cpus=request.cpus * machines / THOUSAND,
        ram=request.memory * machines,
        gpu_memory=gpu_request.memory if gpu_request is not None else None,
        gpu_model=gpu_request.model if gpu_request is not None else None,
        time_limit=spec.limit,
        non_preemptible=spec.non_preemptible or not (spec.requeueable or training or reported),
        epochs_done=job.progress.epochs,
        epochs=training.epochs if training is not None else None,
        expected=training.expected if training is not None else None,
    )


def _ran(job: Job, now: float) -> float:
    """Return the seconds of all attempts on record."""
    if job.progress is not NO_PROGRESS:
        return attained(job, now)
    past = [
        attempt.ended_at - attempt.started_at
        for attempt in job.past
        if attempt.started_at is not None
    ]
    if job.holding and job.started_at is not None:
        past.append(now - job.started_at - job.slack)
    return sum(max(attempt, 0.0) for attempt in past)
