"""Jobs in a few bytes each: the columns of long lists, and the rows of the live stream."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from stoker.core.model.job import FINISHED, NO_PROGRESS, Job
from stoker.core.model.resources import GPU
from stoker.core.model.spec import Spec
from stoker.core.model.units import THOUSAND
from stoker.schema.live import JobRow

CODED_COLUMNS = ("name", "user", "queue", "labels", "state", "node", "cause")
"""Columns with few different texts, which hold indexes into a dictionary."""

Coder = Mapping[Any, Any]
"""Returns what a column holds for a text."""
Expected = Callable[[Job], int | None]
"""Returns the predicted start of a pending, or end of a running job."""


class Dictionary(dict[Any, Any]):
    """Numbers texts in the order in which they are first asked for; None stays None."""

    def __init__(self) -> None:
        super().__init__({None: None})

    def __missing__(self, text: str) -> int:
        """Return the number of a new text."""
        code = self[text] = len(self) - 1
        return code

    @property
    def texts(self) -> list[str]:
        """All texts by number."""
        return [text for text in self if text is not None]


class _Verbatim(dict[Any, Any]):
    def __missing__(self, text: Any) -> Any:
        return text


class _SpecFields(dict[str, tuple[Any, ...]]):
    """Queue, GPUs, time limit, epochs and labels by spec: most jobs have equal ones."""

    def __init__(
        self, specs: Mapping[str, Spec], queues: Coder, labels: Coder, hidden: Container[str]
    ) -> None:
        super().__init__()
        self._specs, self._queues, self._labels, self._hidden = specs, queues, labels, hidden

    def __missing__(self, hash: str) -> tuple[Any, ...]:
        spec = self._specs[hash]
        amount = spec.request.gpu_amount
        gpus = (amount // THOUSAND if amount % THOUSAND == 0 else amount / THOUSAND) or None
        is_hidden = hash in self._hidden
        total = spec.training.epochs if spec.training is not None and not is_hidden else None
        labels = self._labels[",".join(spec.labels) or None if not is_hidden else None]
        fields = self[hash] = (self._queues[spec.queue], gpus, spec.limit, total, labels)
        return fields


def job_columns(
    jobs: Sequence[Job], specs: Mapping[str, Spec], coders: Mapping[str, Coder],
    expected: Expected, hidden: Container[str] = (),
) -> dict[str, list[Any]]:  # fmt: skip
    """Return the columns of some jobs; of those with hidden specs, without the private ones.

    One comprehension per column: 0.9 s for a million jobs, and 2.4 s with one function per job.
    Labels follow from id, array and first, which are half as large.
    """
    names, users, nodes, causes = (coders[name] for name in ("name", "user", "node", "cause"))
    states = {state: coders["state"][state.value] for state in {job.state for job in jobs}}
    by_spec = _SpecFields(specs, coders["queue"], coders["labels"], hidden)
    fields = [by_spec[job.spec] for job in jobs]
    progress = [NO_PROGRESS if job.spec in hidden else job.progress for job in jobs]
    return {
        "id": [job.id for job in jobs],
        "array": [job.array for job in jobs],
        "first": [_first_index(job) for job in jobs],
        "labels": [field[4] for field in fields],
        "name": [names[job.name] for job in jobs],
        "user": [users[job.user] for job in jobs],
        "queue": [field[0] for field in fields],
        "state": [states[job.state] for job in jobs],
        "node": [nodes[job.placement.node if job.placement else job.last_node] for job in jobs],
        "cause": [causes[None if job.spec in hidden else job.cause] for job in jobs],
        "gpus": [field[1] for field in fields],
        "devices": [_gpus_of(job) if job.placement is not None else None for job in jobs],
        "priority": [job.priority for job in jobs],
        "held": [job.held for job in jobs],
        "submitted": [int(job.submitted_at) for job in jobs],
        "started": [int(job.started_at) if job.started_at is not None else None for job in jobs],
        "ended": [int(job.ended_at) if job.ended_at and job.state in FINISHED else None
                  for job in jobs],
        "begin": [int(job.begin_at) if job.begin_at is not None else None for job in jobs],
        "limit": [field[2] for field in fields],
        "expected": [expected(job) for job in jobs],
        "sweep": [job.array if job.params is not None else None for job in jobs],
        "epochs": [None if each is NO_PROGRESS else each.epochs for each in progress],
        "total_epochs": [
            field[3] if each is NO_PROGRESS else field[3] or each.total
            for each, field in zip(progress, fields, strict=True)
        ],
        "attempt": [job.attempt for job in jobs],
    }  # fmt: skip


def job_rows(jobs: Sequence[Job], specs: Mapping[str, Spec], expected: Expected) -> list[JobRow]:
    """Return the same as rows with texts."""
    coders = dict.fromkeys(CODED_COLUMNS, _Verbatim())
    columns = job_columns(jobs, specs, coders, expected)
    columns["label"] = [job.label for job in jobs]
    return [
        JobRow(**dict(zip(columns, row, strict=True)))
        for row in zip(*columns.values(), strict=True)
    ]


def public_row(row: JobRow) -> JobRow:
    """Return a row without what only its user may see."""
    return replace(row, labels=None, cause=None, epochs=None, total_epochs=None)


def _first_index(job: Job) -> int | None:
    """Return the index of the first member of an array without gaps."""
    if job.array is None or job.index is None:
        return None
    return job.index - job.id + job.array


def _gpus_of(job: Job) -> list[str] | None:
    placement = job.placement
    return list(placement.names(GPU)) or list(job.devices) or None if placement else None
