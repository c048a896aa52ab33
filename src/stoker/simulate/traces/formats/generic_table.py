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
from stoker.simulate.traces import field_parsers
from stoker.simulate.traces.csv_reader import unreadable
from stoker.simulate.traces.errors import TraceError, invalid_line
from stoker.simulate.traces.field_parsers import BadCell, Memo, missing, parse_cell
from stoker.simulate.traces.files import count_jobs, open_text, skipped_notes, sorted_workload
from stoker.simulate.workload import TraceJob, Workload

Cell = Callable[[str], Any]

COLUMN_NAMES: dict[str, tuple[str, ...]] = {
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
"""Column names of each field of a job; the first one found is used."""

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
    """Index, name and parser of a column."""

    place: int
    name: str
    cell: Cell


def read(path: Path) -> Workload:
    """Read a table with well-known column names."""
    with open_text(path) as file:
        delimiter, names = _header(path, file)
        return _read(path, file, delimiter, names, find_columns(names), [])


def read_as(
    path: Path, column_units: Mapping[str, tuple[str, float]], notes: list[str]
) -> Workload:
    """Read a table with these columns: name and unit of each field."""
    with open_text(path) as file:
        delimiter, names = _header(path, file)
        absent = [name for name, _ in column_units.values() if name not in names]
        if absent:
            raise TraceError(
                f"{path}, line 1: column {absent[0]} is missing; add it, or omit --format to "
                "detect the format."
            )
        columns = {
            field: Column(names.index(name), name, _reader(field, unit))
            for field, (name, unit) in column_units.items()
        }
        return _read(path, file, delimiter, names, columns, notes)


def header_names(line: str) -> tuple[str, list[str]]:
    """Return the delimiter and the normalised column names of a header."""
    delimiter = max(",;\t|", key=line.count)
    row = next(csv.reader([line], delimiter=delimiter), [])
    names = [cell.strip().lower() for cell in row]
    return delimiter, ["_".join(name.replace("-", " ").split()) for name in names]


def find_columns(names: Sequence[str]) -> dict[str, Column]:
    """Return the recognised columns by field."""
    columns = {}
    for field in COLUMN_NAMES:
        column = _find(field, names)
        if column is not None:
            columns[field] = column
    return columns


def missing_column(columns: Mapping[str, Column]) -> str | None:
    """Return the first required field without a column as text, None if there is none."""
    if "submit_time" not in columns and "start" not in columns:
        return "submission times (submit_time)"
    if "duration" not in columns and not ("start" in columns and "end" in columns):
        return "durations (duration, or start_time and end_time)"
    if "gpus" not in columns:
        return "numbers of GPUs (num_gpus)"
    return None


def _find(field: str, names: Sequence[str]) -> Column | None:
    units = _UNITS if field in _TIMES else _SIZES if field in ("ram", "gpu_memory") else {}
    for name in COLUMN_NAMES[field]:
        for ending, unit in {"": 1.0, **units}.items():
            if name + ending in names:
                index = names.index(name + ending)
                return Column(index, name + ending, _reader(field, unit if ending else 1.0))
    return None


def _reader(field: str, unit: float) -> Cell:
    cell = _CELLS.get(field, _text)
    if unit == 1.0:
        return cell
    if field in ("submit_time", "start", "end"):
        return lambda text: _scaled_time(text, unit)
    if field == "time_limit":
        return lambda text: (
            None
            if missing(text)
            else field_parsers.limit_of(field_parsers.parse_number(text) * unit)
        )
    if field in ("ram", "gpu_memory"):
        return lambda text: 0 if missing(text) else round(field_parsers.parse_number(text) * unit)
    return lambda text: field_parsers.check_duration(field_parsers.parse_number(text) * unit)


def _scaled_time(text: str, unit: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise BadCell("a number") from None
    return field_parsers.check_time(value * unit)


def _header(path: Path, file: IO[str]) -> tuple[str, list[str]]:
    line = file.readline()
    if not line.strip():
        raise TraceError(f"{path}, line 1: the header with the column names is missing; add it.")
    try:
        return header_names(line)
    except csv.Error as error:
        raise unreadable(path, 1, 1, error) from None


def _read(
    path: Path, file: IO[str], delimiter: str, names: list[str],
    columns: dict[str, Column], notes: list[str],
) -> Workload:  # fmt: skip
    absent = missing_column(columns)
    if absent is not None:
        raise TraceError(
            f"{path}, line 1: no column is recognised as {absent}; rename the column that has them."
        )
    if "submit_time" not in columns:
        columns["submit_time"] = columns["start"]
        notes.append("No submission times: the start times are used instead.")
    counts: Counter[str] = Counter()
    rows = _Rows(path, file, delimiter)
    jobs: list[TraceJob] = []
    try:
        jobs.extend(_jobs(rows, len(names), columns, counts))
    except BadCell as error:
        raise invalid_line(path, rows.line, error) from None
    except IndexError:
        why = f"expected {len(names)} cells as in the header, found fewer"
        raise invalid_line(path, rows.line, why) from None
    span_note = _time_span_note(path, delimiter, columns["submit_time"], jobs)
    return sorted_workload(
        path, jobs, [*notes, *span_note, *skipped_notes(counts), *_cores_only_note(jobs)], ()
    )


class _Rows:
    """Rows after the header, with the line number of the last one."""

    def __init__(self, path: Path, file: IO[str], delimiter: str) -> None:
        self._path = path
        # Strict: otherwise an open quote would silently swallow all that follows.
        self._reader = csv.reader(file, delimiter=delimiter, strict=True)

    @property
    def line(self) -> int:
        """Return the last line of the row that was read last."""
        return self._reader.line_num + 1

    def __iter__(self) -> Iterator[list[str]]:
        """Yield rows; raise TraceError."""
        reader, ended = self._reader, 0
        try:
            for row in reader:
                ended = reader.line_num
                yield row
        except csv.Error as error:
            raise unreadable(self._path, ended + 2, reader.line_num + 1, error) from None


def _time_span_note(path: Path, delimiter: str, column: Column, jobs: list[TraceJob]) -> list[str]:
    """Return a note if times span more than ten years: dates and plain seconds are mixed."""
    first = min((job.submit_time for job in jobs), default=0.0)
    last = max((job.submit_time for job in jobs), default=0.0)
    if last - first <= LONGEST:
        return []
    ends: dict[float, str] = {}
    with open_text(path) as file:  # read again, because jobs have no line numbers
        file.readline()
        rows = _Rows(path, file, delimiter)
        for row in rows:
            text = "".join(row[column.place : column.place + 1])
            with suppress(BadCell):  # of a skipped job
                if (at := column.cell(text)) in (first, last):
                    ends.setdefault(at, f"{text.strip()} (line {rows.line})")
    years = f"{(last - first) / _YEAR:,.0f} years"
    note = f"{column.name} spans {years}, from {ends[first]} to {ends[last]}; check whether"
    return [f"{note} the column mixes dates and plain seconds."]


def _cores_only_note(jobs: list[TraceJob]) -> list[str]:
    bare = sum(not job.gpus for job in jobs)
    return [f"{count_jobs(bare, 'requests')} cores only."] if bare else []


def _jobs(
    rows: Iterable[list[str]], width: int, columns: Mapping[str, Column], counts: Counter[str]
) -> Iterator[TraceJob]:
    at, gpus = columns["submit_time"], columns["gpus"]
    run_time = _duration_parser(columns)
    more = [
        (field, column.place, Memo(column.cell))
        for field, column in columns.items()
        if field not in ("submit_time", "duration", "start", "end", "gpus")
    ]
    at_index, gpus_index = at.place, gpus.place
    at_cell, amounts = at.cell, Memo(gpus.cell)
    for row in rows:
        if not row:
            continue
        if len(row) > width and any(row[width:]):  # an unquoted comma
            raise BadCell(f"expected {width} cells as in the header, found {len(row)}")
        try:
            seconds = run_time(row)
            if not seconds:
                counts[_NEVER if seconds is None else _NO_TIME] += 1
                continue
            amount = amounts[row[gpus_index]]
            values = {field: memo[row[index]] for field, index, memo in more}
            moment = at_cell(row[at_index])
        except BadCell as error:
            if missing(row[at_index]):
                counts[_NEVER] += 1
                continue
            raise _located(error, row, columns) from None
        if not amount and not values.get("cpus"):
            counts[_NOTHING] += 1
            continue
        yield TraceJob(submit_time=moment, duration=seconds, gpus=amount, **values)


def _located(error: BadCell, row: list[str], columns: Mapping[str, Column]) -> BadCell:
    """Return the error with the column and text of the invalid cell."""
    for column in columns.values():
        try:
            if not missing(row[column.place]):
                parse_cell(column.name, row[column.place], column.cell)
        except BadCell as located:
            return located
    return error


def _duration_parser(columns: Mapping[str, Column]) -> Callable[[list[str]], float | None]:
    """Return a function from a row to its run time; None: it did not end."""
    duration, start, end = columns.get("duration"), columns.get("start"), columns.get("end")

    def between(row: list[str]) -> float | None:
        if start is None or end is None:
            return None
        first, last = row[start.place], row[end.place]
        if missing(first) or missing(last):
            return None
        seconds: float = end.cell(last) - start.cell(first)
        if seconds < 0:
            raise BadCell(f"the job ends ({last}) before it starts ({first})")
        if seconds > LONGEST:
            raise BadCell(f"the job runs for more than ten years, from {first} to {last}")
        return seconds

    if duration is None:
        return between
    index, cell = duration.place, duration.cell

    def run_time(row: list[str]) -> float | None:
        text = row[index]
        try:
            seconds: float = cell(text)
        except BadCell:
            if not missing(text):
                raise
            return between(row)
        return seconds

    return run_time


def _text(text: str) -> str:
    text = text.strip()
    return "" if missing(text) else intern(text)


def _or_default(parse: Cell, default: object) -> Cell:
    """Return a parser that returns the default for a missing value."""
    return lambda text: default if missing(text) else parse(text)


def _memory(text: str) -> int | None:
    return (None if missing(text) else field_parsers.size(text)) or None


def _models(text: str) -> tuple[str, ...]:
    name = _text(text)
    return () if not name or name.lower() == "any" else tuple(name.split("|"))


_CELLS: dict[str, Cell] = {
    "submit_time": field_parsers.moment,
    "start": field_parsers.moment,
    "end": field_parsers.moment,
    "duration": field_parsers.seconds,
    "gpus": _or_default(field_parsers.amount, 0.0),
    "cpus": _or_default(field_parsers.amount, 0.0),
    "ram": _or_default(field_parsers.size, 0),
    "gpu_memory": _memory,
    "time_limit": field_parsers.limit,
    "priority": _or_default(field_parsers.parse_integer, 0),
    "gpu_models": _models,
}
