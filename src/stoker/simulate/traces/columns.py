"""Columns of a table of jobs: their names, units and parsers.

Some tables have minutes under the names that others use for seconds; the checks refuse them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from sys import intern
from typing import Any

from msgspec import Struct

from stoker.simulate.traces import field_parsers
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.field_parsers import BadCell, missing

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

TIME_UNITS = {"milliseconds": 0.001, "seconds": 1.0, "minutes": 60.0, "hours": 3600.0}
"""Values of `--time-unit`, in seconds."""
ENDINGS = {
    "_ms": 0.001, "_s": 1.0, "_sec": 1.0, "_secs": 1.0, "_seconds": 1.0, "_min": 60.0,
    "_minutes": 60.0, "_h": 3600.0, "_hours": 3600.0,
}  # fmt: skip
"""Units in the names of columns, in seconds."""
UNIX_TIME = 1e9
"""Seconds since 1970 in the year 2001: a larger number is a Unix time, in seconds."""
CHECKED_ROWS = 1000
"""Rows in which run times are compared with start and end: the unit is the same in all."""
_MIN_FACTOR = 30.0
"""A minute is 60 seconds; a job that was interrupted may take some times its run time."""
_MIN_JOBS = 20
"""A smaller table was probably written by hand, as the documentation shows it."""
_MIN_MEDIAN_SECONDS = 300.0
"""Half of the jobs of published traces run longer, in seconds (medians 540 to 14,392); in minutes,
300 would be five hours."""
_TIMES = ("submit_time", "duration", "start", "end", "time_limit")
_SIZES = {"_mib": 1.0, "_mb": 1.0, "_gib": 1024.0, "_gb": 1024.0}


class Column(Struct, frozen=True):
    """Index, name and parser of a column."""

    place: int
    name: str
    cell: Cell


def find_columns(names: Sequence[str], time_unit: float = 1.0) -> dict[str, Column]:
    """Return the recognised columns by field; times without a unit are in this one."""
    columns = {}
    for field in COLUMN_NAMES:
        column = _find(field, names, time_unit if field in _TIMES else 1.0)
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


def _find(field: str, names: Sequence[str], default_unit: float) -> Column | None:
    units = ENDINGS if field in _TIMES else _SIZES if field in ("ram", "gpu_memory") else {}
    for name in COLUMN_NAMES[field]:
        for ending, unit in {"": 1.0, **units}.items():
            if name + ending in names:
                index = names.index(name + ending)
                reader = cell_reader(field, unit) if ending else _unit_reader(field, default_unit)
                return Column(index, name + ending, reader)
    return None


def cell_reader(field: str, unit: float) -> Cell:
    """Return the parser of the cells of a field in this unit."""
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


def _unit_reader(field: str, unit: float) -> Cell:
    """Return the parser of a cell in which only a small plain number is in this unit.

    Dates and Unix times name their unit, and so does a duration such as 1-00:00:00.
    """
    plain, scaled = cell_reader(field, 1.0), cell_reader(field, unit)
    if unit == 1.0:
        return plain

    def cell(text: str) -> Any:
        try:
            value = float(text)
        except ValueError:
            return plain(text)
        return plain(text) if value >= UNIX_TIME else scaled(text)

    return cell


def _scaled_time(text: str, unit: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise BadCell("a number") from None
    return field_parsers.check_time(value * unit)


def check_run_times(path: Path, column: str, run_times: Sequence[float]) -> None:
    """Raise TraceError if run times in a column without a unit may be minutes."""
    median = sorted(run_times)[len(run_times) // 2]
    if (
        len(run_times) < _MIN_JOBS
        or median >= _MIN_MEDIAN_SECONDS
        or column in TIME_UNITS
        or not all(seconds.is_integer() for seconds in run_times)
    ):
        return
    raise TraceError(
        f"{path}, line 1: the unit of {column} is not clear: half of the run times are at "
        f"most {median:g}; give --time-unit seconds or --time-unit minutes."
    )


def check_elapsed(path: Path, column: str, pairs: Iterable[tuple[float, float]]) -> None:
    """Raise TraceError if most run times are far shorter than the time from start to end."""
    shorter = [run_time * _MIN_FACTOR < elapsed for elapsed, run_time in pairs]
    if sum(shorter) * 2 > len(shorter):
        raise TraceError(
            f"{path}, line 1: the unit of {column} is not clear: most jobs run far longer from "
            f"start to end; rename it, for example to {column}_minutes."
        )


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
