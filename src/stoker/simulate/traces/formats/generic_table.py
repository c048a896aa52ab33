"""A plain table: one job in a line, its columns known by their names in the first one."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO

from stoker.core.model.units import MAX_DURATION_SECONDS
from stoker.simulate.traces.columns import (
    CHECKED_ROWS,
    COLUMN_NAMES,
    Column,
    cell_reader,
    check_elapsed,
    check_run_times,
    find_columns,
    missing_column,
)
from stoker.simulate.traces.csv_reader import unreadable
from stoker.simulate.traces.errors import TraceError, invalid_line
from stoker.simulate.traces.field_parsers import BadCell, Memo, missing, parse_cell
from stoker.simulate.traces.files import count_jobs, open_text, skipped_notes, sorted_workload
from stoker.simulate.workload import TraceJob, Workload

_YEAR = 365.25 * 86400
_NEVER = "not started or not ended"
_NO_TIME = "the run time is zero"
_NOTHING = "no GPU and no core requested"


def read(path: Path, time_unit: float | None = None) -> Workload:
    """Read a table with well-known column names.

    The time unit, in seconds, applies to times whose column does not name one; None: seconds,
    unless they look like minutes.
    """
    with open_text(path) as file:
        delimiter, names = _header(path, file)
        columns = find_columns(names, time_unit or 1.0)
        workload = _read(path, file, delimiter, names, columns, [])
    duration = columns.get("duration")
    if time_unit is None and duration is not None and duration.name in COLUMN_NAMES["duration"]:
        check_run_times(path, duration.name, [job.duration for job in workload.jobs])
        pairs = _elapsed_and_run_times(path, delimiter, columns)
        check_elapsed(path, duration.name, pairs)
    return workload


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
            field: Column(names.index(name), name, cell_reader(field, unit))
            for field, (name, unit) in column_units.items()
        }
        return _read(path, file, delimiter, names, columns, notes)


def header_names(line: str) -> tuple[str, list[str]]:
    """Return the delimiter and the normalised column names of a header."""
    delimiter = max(",;\t|", key=line.count)
    row = next(csv.reader([line], delimiter=delimiter), [])
    names = [cell.strip().lower() for cell in row]
    return delimiter, ["_".join(name.replace("-", " ").split()) for name in names]


def _elapsed_and_run_times(
    path: Path, delimiter: str, columns: dict[str, Column]
) -> Iterator[tuple[float, float]]:
    """Yield the seconds from start to end and the run time of the first jobs that have both."""
    if "start" not in columns or "end" not in columns:
        return
    by_times = _duration_parser({field: columns[field] for field in ("start", "end")})
    by_column = _duration_parser({"duration": columns["duration"]})
    with open_text(path) as file:
        file.readline()
        for row in islice(_Rows(path, file, delimiter), CHECKED_ROWS):
            with suppress(BadCell, IndexError):  # of a skipped job
                elapsed, run_time = by_times(row), by_column(row)
                if elapsed and run_time:
                    yield elapsed, run_time


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
    if last - first <= MAX_DURATION_SECONDS:
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
        if seconds > MAX_DURATION_SECONDS:
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
