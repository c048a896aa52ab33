"""The output of `stoker history --json` and `stoker queue --json`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from stoker.core.model.units import THOUSAND, parse_amount
from stoker.schema.job import History, JobView
from stoker.schema.training import TrainingView
from stoker.simulate.traces import field_parsers
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.files import count_jobs, open_bytes
from stoker.simulate.traces.stoker_jobs import JobRecord, build_workload
from stoker.simulate.workload import Workload


def read(path: Path) -> Workload:
    """Read a file of jobs that one of the commands printed."""
    with open_bytes(path) as file:
        try:
            decoded = msgspec.json.decode(file.read(), type=History | list[JobView[str]])
        except msgspec.MsgspecError as error:
            raise TraceError(
                f"{path} is not output of `stoker history --json` ({error}); create it with: "
                "stoker history --json --limit 1000000 > FILE"
            ) from error
    reply = decoded if isinstance(decoded, History) else History(jobs=decoded)
    workload = build_workload(path, _records(path, reply.jobs))
    if reply.more:
        workload.notes.append(
            f"{count_jobs(reply.more)} missing from the file; create it with a larger --limit."
        )
    return workload


def _records(path: Path, views: list[JobView[str]]) -> Iterator[JobRecord]:
    for view in views:
        try:
            record = record_of(view)
            field_parsers.check_duration(record.run_seconds)
        except ValueError as error:
            raise TraceError(f"{path}: job {view.id} cannot be read ({error}).") from error
        yield record


def record_of(view: JobView[str]) -> JobRecord:
    """Return the record of a listed job."""
    request, training = view.request, view.training
    machines = request.machines or 1
    return JobRecord(
        submitted_at=field_parsers.moment(view.submitted_at or ""),
        run_seconds=_ran(view),
        is_finished=view.ended_at is not None,
        user=view.user,
        name=training.family.removeprefix(f"{view.user}: ") if training else view.name,
        queue=view.queue,
        priority=view.priority,
        gpus=_amount(request.gpus) * machines,
        last_gpus=len(view.devices.get("gpu", ())) if request.most_gpus else None,
        cpus=_amount(request.cpus) * machines,
        ram=(request.memory or 0) * machines,
        gpu_memory=request.gpu_memory,
        gpu_model=request.model,
        time_limit=view.time_limit,
        non_preemptible=not (view.restartable or counts_epochs(training)),
        epochs_done=training.epochs_done if training is not None else 0,
        epochs=training.epochs if training is not None else None,
        expected=training.estimate_seconds if training is not None else None,
    )


def counts_epochs(training: TrainingView | None) -> bool:
    """Return True if a job has reported epochs, or will as far as is known."""
    if training is None:
        return False
    return training.listening or training.epochs_done > 0 or training.epochs is not None


def _ran(view: JobView[str]) -> float:
    """Return the seconds of all attempts."""
    if view.training is not None and view.training.ran_seconds:
        return view.training.ran_seconds
    spans = [
        field_parsers.moment(attempt.ended_at or "") - field_parsers.moment(attempt.started_at)
        for attempt in view.attempts
        if attempt.started_at is not None
    ]
    if view.ended_at is None and view.elapsed is not None:
        spans.append(view.elapsed)
    return sum(max(span, 0.0) for span in spans)


def _amount(text: str | None) -> float:
    return parse_amount(text) / THOUSAND if text else 0.0
