"""A plain table: one job in a line, its columns known by their names in the first one."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from sys import intern
from typing import IO, Any

from msgspec import Struct

from stoker.core.units import LONGEST
from stoker.simulate.traces import field_parsers as cells
from stoker.simulate.traces.csv_reader import unreadable
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.field_parsers import BadCell, Memo, missing
from stoker.simulate.traces.files import count_jobs, open_text, skipped_notes, sorted_workload
from stoker.simulate.workload import TraceJob, Workload

Cell = Callable[[str], Any]

NAMES: dict[str, tuple[str, ...]] = {
    "submit_time": (
        "submission_time", "submit_time", "submitted_at", "submitted_time", "submit", "submitted",
        "submission", "arrival_time", "arrival", "arrive_time", "timestamp", "created_at",
        "creation_time", "create_time", "at", "time",
    ),
    "duration": (
        "duration", "run_time", "runtime", "running_time", "elapsed", "seconds", "service_time",
        "execution_time", "length",
    ),
    "start": ("start_time", "started_at", "start", "started", "begin_time", "begin"),
    "end": (
        "end_time", "ended_at", "finished_at", "finish_time", "completion_time", "end", "ended",
        "finish", "finished",
    ),
    "gpus": (
        "num_gpus", "num_gpu", "gpus", "gpu_num", "n_gpus", "n_gpu", "ngpus", "ngpu", "gpu_count",
        "requested_gpus", "gpu",
    ),
    "user": ("user", "user_id", "username", "user_name", "owner"),
    "name": ("model_name", "model", "application", "job_name", "jobname", "name", "family"),
    "queue": ("cluster", "vc", "virtual_cluster", "partition", "queue", "tenant"),
    "priority": ("priority",),
    "cpus": ("cpus", "num_cpus", "num_cpu", "cpu_num", "n_cpus", "ncpus", "cpu_count", "cpu"),
    "ram": ("memory", "mem", "ram"),
    "gpu_memory": ("gpu_memory", "gpu_mem", "vram"),
    "time_limit": ("limit", "timelimit", "time_limit", "walltime", "requested_time"),
    "gpu_models": ("gpu_model", "gpu_type"),
}  # fmt: skip
"""What a column is called that holds a field of a job; the first one that is there counts."""

_UNITS = {
    "_ms": 0.001, "_s": 1.0, "_sec": 1.0, "_secs": 1.0, "_seconds": 1.0, "_min": 60.0,
    "_minutes": 60.0, "_h": 3600.0, "_hours": 3600.0,
}  # fmt: skip
_TIMES = ("submit_time", "duration", "start", "end", "time_limit")
_SIZES = {"_mib": 1.0, "_mb": 1.0, "_gib": 1024.0, "_gb": 1024.0}
_YEAR = 365.25 * 86400
_NEVER = "not started or not ended"
_NO_TIME = "the run time is zero"
_NOTHING = "no GPU and no core requested"


class Column(Struct, frozen=True):
    """Where a field stands, what it is called there, and how to read it."""

    place: int
    name: str
    cell: Cell


def read(path: Path) -> Workload:
    """Read a table whose columns have names that people use for such things."""
    with open_text(path) as file:
        delimiter, names = _header(path, file)
        return _read(path, file, delimiter, names, recognised(names), [])


def read_as(path: Path, wanted: Mapping[str, tuple[str, float]], notes: list[str]) -> Workload:
    """Read a table whose columns are known: the name of each field's, and its unit."""
    with open_text(path) as file:
        delimiter, names = _header(path, file)
        absent = [name for name, _ in wanted.values() if name not in names]
        if absent:
            raise TraceError(
                f"{path}, line 1: column {absent[0]} is missing; add it, or omit --format to "
                "detect the format."
            )
        found = {
            field: Column(names.index(name), name, _reader(field, unit))
            for field, (name, unit) in wanted.items()
        }
        return _read(path, file, delimiter, names, found, notes)


def header_names(line: str) -> tuple[str, list[str]]:
    """What separates the cells of a table, and the names in its first line, as we spell them."""
    delimiter = max(",;\t|", key=line.count)
    row = next(csv.reader([line], delimiter=delimiter), [])
    names = [cell.strip().lower() for cell in row]
    return delimiter, ["_".join(name.replace("-", " ").split()) for name in names]


def recognised(names: Sequence[str]) -> dict[str, Column]:
    """The columns that hold something of a job, by the field they hold."""
    found = {}
    for field in NAMES:
        column = _find(field, names)
        if column is not None:
            found[field] = column
    return found


def is_header(names: Sequence[str]) -> bool:
    """Whether such a table can be read."""
    return absent_in(names) is None


def absent_in(names: Sequence[str]) -> str | None:
    """What no column has that no workload can do without, in words."""
    return _absent(recognised(names))


def _find(field: str, names: Sequence[str]) -> Column | None:
    units = _UNITS if field in _TIMES else _SIZES if field in ("ram", "gpu_memory") else {}
    for name in NAMES[field]:
        for ending, unit in {"": 1.0, **units}.items():
            if name + ending in names:
                place = names.index(name + ending)
                return Column(place, name + ending, _reader(field, unit if ending else 1.0))
    return None


def _reader(field: str, unit: float) -> Cell:
    cell = _CELLS.get(field, _text)
    if unit == 1.0:
        return cell
    if field in ("submit_time", "start", "end"):
        return lambda text: _scaled_moment(text, unit)
    if field == "time_limit":
        return lambda text: None if missing(text) else cells.limit_of(cells.number(text) * unit)
    if field in ("ram", "gpu_memory"):
        return lambda text: 0 if missing(text) else round(cells.number(text) * unit)
    return lambda text: cells.bearable(cells.number(text) * unit)


def _scaled_moment(text: str, unit: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise BadCell("a number") from None
    return cells.in_our_time(value * unit)


def _header(path: Path, file: IO[str]) -> tuple[str, list[str]]:
    line = file.readline()
    if not line.strip():
        raise TraceError(f"{path}, line 1: the header with the column names is missing; add it.")
    try:
        return header_names(line)
    except csv.Error as error:
        raise unreadable(path, 1, 1, error) from None


def _absent(found: Mapping[str, Column]) -> str | None:
    if "submit_time" not in found and "start" not in found:
        return "submission times (submit_time)"
    if "duration" not in found and not ("start" in found and "end" in found):
        return "durations (duration, or start_time and end_time)"
    if "gpus" not in found:
        return "numbers of GPUs (num_gpus)"
    return None


def _read(
    path: Path, file: IO[str], delimiter: str, names: list[str],
    found: dict[str, Column], notes: list[str],
) -> Workload:  # fmt: skip
    absent = _absent(found)
    if absent is not None:
        raise TraceError(
            f"{path}, line 1: no column is recognised as {absent}; rename the column that has them."
        )
    if "submit_time" not in found:
        found["submit_time"] = found["start"]
        notes.append("No submission times: the start times are used instead.")
    counts: Counter[str] = Counter()
    rows = _Rows(path, file, delimiter)
    jobs: list[TraceJob] = []
    try:
        jobs.extend(_jobs(rows, len(names), found, counts))
    except BadCell as error:
        raise TraceError(f"{path}, line {rows.line}: {error}.") from None
    except IndexError:
        raise TraceError(
            f"{path}, line {rows.line}: expected {len(names)} cells as in the header, "
            "found fewer; correct or delete the line."
        ) from None
    far = _far_apart(path, delimiter, found["submit_time"], jobs)
    return sorted_workload(path, jobs, [*notes, *far, *skipped_notes(counts), *_remarks(jobs)], ())


class _Rows:
    """The rows behind the first line; whoever stops at one can tell its line."""

    def __init__(self, path: Path, file: IO[str], delimiter: str) -> None:
        self._path = path
        # Strictly: else an open quote swallows all that follows, and nobody notices.
        self._reader = csv.reader(file, delimiter=delimiter, strict=True)

    @property
    def line(self) -> int:
        """Where the row ends that was read last."""
        return self._reader.line_num + 1

    def __iter__(self) -> Iterator[list[str]]:
        """Read on; raises BadTrace."""
        reader, ended = self._reader, 0
        try:
            for row in reader:
                ended = reader.line_num
                yield row
        except csv.Error as error:
            raise unreadable(self._path, ended + 2, reader.line_num + 1, error) from None


def _far_apart(path: Path, delimiter: str, column: Column, jobs: list[TraceJob]) -> list[str]:
    """A note on times that no one cluster has seen: dates and plain seconds in one column."""
    first = min((job.submit_time for job in jobs), default=0.0)
    last = max((job.submit_time for job in jobs), default=0.0)
    if last - first <= LONGEST:
        return []
    ends: dict[float, str] = {}
    with open_text(path) as file:  # once more, since jobs do not know their lines
        file.readline()
        rows = _Rows(path, file, delimiter)
        for row in rows:
            text = "".join(row[column.place : column.place + 1])
            with suppress(BadCell):  # of a job that was left out
                if (at := column.cell(text)) in (first, last):
                    ends.setdefault(at, f"{text.strip()} (line {rows.line})")
    years = f"{(last - first) / _YEAR:,.0f} years"
    note = f"{column.name} spans {years}, from {ends[first]} to {ends[last]}; check whether"
    return [f"{note} the column mixes dates and plain seconds."]


def _remarks(jobs: list[TraceJob]) -> list[str]:
    bare = sum(not job.gpus for job in jobs)
    return [f"{count_jobs(bare, 'requests')} cores only."] if bare else []


def _jobs(
    rows: Iterable[list[str]], width: int, found: Mapping[str, Column], counts: Counter[str]
) -> Iterator[TraceJob]:
    at, gpus = found["submit_time"], found["gpus"]
    lasting = _lasting(found)
    more = [
        (field, column.place, Memo(column.cell))
        for field, column in found.items()
        if field not in ("submit_time", "duration", "start", "end", "gpus")
    ]
    at_place, gpus_place = at.place, gpus.place
    at_cell, amounts = at.cell, Memo(gpus.cell)
    for row in rows:
        if not row:
            continue
        if len(row) > width and any(row[width:]):  # an unquoted comma has moved all behind it
            raise BadCell(
                f"expected {width} cells as in the header, found {len(row)}; correct or "
                "delete the line"
            )
        try:
            seconds = lasting(row)
            if not seconds:
                counts[_NEVER if seconds is None else _NO_TIME] += 1
                continue
            amount = amounts[row[gpus_place]]
            values = {field: memo[row[place]] for field, place, memo in more}
            moment = at_cell(row[at_place])
        except BadCell as error:
            if missing(row[at_place]):
                counts[_NEVER] += 1
                continue
            raise _located(error, row, found) from None
        if not amount and not values.get("cpus"):
            counts[_NOTHING] += 1
            continue
        yield TraceJob(submit_time=moment, duration=seconds, gpus=amount, **values)


def _located(error: BadCell, row: list[str], found: Mapping[str, Column]) -> BadCell:
    """Say which cell of the row it was."""
    for column in found.values():
        try:
            if not missing(row[column.place]):
                column.cell(row[column.place])
        except BadCell as wrong:
            text = row[column.place][:40]
            return BadCell(f"{column.name} '{text}' is not {wrong}; correct or delete the line")
    return error


def _lasting(found: Mapping[str, Column]) -> Callable[[list[str]], float | None]:
    """How to tell from a row for how long the job ran; None: it did not end."""
    duration, start, end = found.get("duration"), found.get("start"), found.get("end")

    def between(row: list[str]) -> float | None:
        if start is None or end is None:
            return None
        first, last = row[start.place], row[end.place]
        if missing(first) or missing(last):
            return None
        seconds: float = end.cell(last) - start.cell(first)
        if seconds < 0:
            raise BadCell(f"the job ends ({last}) before it starts ({first}); correct the line")
        if seconds > LONGEST:
            raise BadCell(
                f"the job runs for more than ten years, from {first} to {last}; correct the line"
            )
        return seconds

    if duration is None:
        return between
    place, cell = duration.place, duration.cell

    def lasting(row: list[str]) -> float | None:
        text = row[place]
        try:
            seconds: float = cell(text)
        except BadCell:
            if not missing(text):
                raise
            return between(row)
        return seconds

    return lasting


def _text(text: str) -> str:
    text = text.strip()
    return "" if missing(text) else intern(text)


def _amount(text: str) -> float:
    return 0.0 if missing(text) else cells.amount(text)


def _size(text: str) -> int:
    return 0 if missing(text) else cells.size(text)


def _memory(text: str) -> int | None:
    return (None if missing(text) else cells.size(text)) or None


def _priority(text: str) -> int:
    return 0 if missing(text) else cells.whole(text)


def _models(text: str) -> tuple[str, ...]:
    name = _text(text)
    return () if not name or name.lower() == "any" else tuple(name.split("|"))


_CELLS: dict[str, Cell] = {
    "submit_time": cells.moment,
    "start": cells.moment,
    "end": cells.moment,
    "duration": cells.seconds,
    "gpus": _amount,
    "cpus": _amount,
    "ram": _size,
    "gpu_memory": _memory,
    "time_limit": cells.limit,
    "priority": _priority,
    "gpu_models": _models,
}
