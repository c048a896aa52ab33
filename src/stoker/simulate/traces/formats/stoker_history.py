"""What `stoker history --json` and `stoker queue --json` print."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from stoker.core.units import THOUSAND, parse_amount
from stoker.simulate.traces import field_parsers
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.files import count_jobs, open_bytes, title_of
from stoker.simulate.traces.stoker_jobs import JobRecord, build_workload
from stoker.simulate.workload import Workload


class Asked(Struct):
    """What a job asks for, as it was typed."""

    gpus: str | None = None
    most_gpus: str | None = None
    model: str | None = None
    gpu_memory: int | None = None
    cpus: str | None = None
    memory: int | None = None
    machines: int | None = None


class Attempt(Struct):
    """One attempt that is over."""

    ended_at: str
    started_at: str | None = None


class Trained(Struct):
    """How far a training is."""

    epochs_done: int = 0
    epochs: int | None = None
    ran_seconds: float | None = None
    estimate_seconds: float | None = None
    expected_seconds: float | None = None
    """What its owner said."""
    remaining_seconds: float | None = None
    listening: bool = False
    family: str = ""

    @property
    def saves(self) -> bool:
        """Whether it counts epochs, as far as is known, and not only said how long it takes."""
        return self.listening or self.epochs_done > 0 or self.epochs is not None


class View(Struct):
    """One job; what is not needed here is passed over."""

    id: int
    submitted_at: str
    state: str
    name: str = ""
    user: str = ""
    queue: str = ""
    priority: int = 0
    request: Asked = msgspec.field(default_factory=Asked)
    restartable: bool = False
    devices: dict[str, list[str]] = {}
    ended_at: str | None = None
    elapsed: float | None = None
    time_limit: int | None = None
    attempts: list[Attempt] = []
    training: Trained | None = None


class Reply(Struct):
    """All that was printed."""

    jobs: list[View]
    more: int = 0


def read(path: Path) -> Workload:
    """Read a file of jobs as the commands print them."""
    with open_bytes(path) as file:
        try:
            found = msgspec.json.decode(file.read(), type=Reply | list[View])
        except msgspec.MsgspecError as error:
            raise TraceError(
                f"{path} is not output of `stoker history --json` ({error}); create it with: "
                "stoker history --json --limit 1000000 > FILE"
            ) from error
    reply = found if isinstance(found, Reply) else Reply(jobs=found)
    told = build_workload(title_of(path), _records(path, reply.jobs), (), path)
    if reply.more:
        told.notes.append(
            f"{count_jobs(reply.more)} missing from the file; create it with a larger --limit."
        )
    return told


def _records(path: Path, views: list[View]) -> Iterator[JobRecord]:
    for view in views:
        try:
            record = record_of(view)
            field_parsers.check_duration(record.run_seconds)
        except ValueError as error:
            raise TraceError(f"{path}: job {view.id} cannot be read ({error}).") from error
        yield record


def record_of(view: View) -> JobRecord:
    """What is on record of a job that was listed."""
    asked, training = view.request, view.training
    machines = asked.machines or 1
    return JobRecord(
        submitted_at=field_parsers.moment(view.submitted_at),
        run_seconds=_ran(view),
        is_finished=view.ended_at is not None,
        user=view.user,
        name=training.family.removeprefix(f"{view.user}: ") if training else view.name,
        queue=view.queue,
        priority=view.priority,
        gpus=_amount(asked.gpus) * machines,
        last_gpus=len(view.devices.get("gpu", ())) if asked.most_gpus else None,
        cpus=_amount(asked.cpus) * machines,
        ram=(asked.memory or 0) * machines,
        gpu_memory=asked.gpu_memory,
        gpu_model=asked.model,
        time_limit=view.time_limit,
        non_preemptible=not (view.restartable or (training is not None and training.saves)),
        epochs_done=training.epochs_done if training is not None else 0,
        epochs=training.epochs if training is not None else None,
        expected=training.estimate_seconds if training is not None else None,
    )


def _ran(view: View) -> float:
    """Seconds in all attempts."""
    if view.training is not None and view.training.ran_seconds:
        return view.training.ran_seconds
    spans = [
        field_parsers.moment(each.ended_at) - field_parsers.moment(each.started_at)
        for each in view.attempts
        if each.started_at is not None
    ]
    if view.ended_at is None and view.elapsed is not None:
        spans.append(view.elapsed)
    return sum(max(span, 0.0) for span in spans)


def _amount(text: str | None) -> float:
    return parse_amount(text) / THOUSAND if text else 0.0
