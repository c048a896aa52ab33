"""Detect the format of a trace from its content, not from its name."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from msgspec.structs import replace

from stoker.simulate.traces.columns import find_columns, missing_column
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.files import open_bytes, rebase
from stoker.simulate.traces.formats import generic_table, muri, sacct, swf
from stoker.simulate.workload import TraceJob, Workload

_DETECTION_BYTES = 1 << 16
"""Bytes at the start of a file that are examined."""
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""First bytes of a pickle of each protocol in use."""
_GAVEL_CELLS = 9
_POLLUX = {"name", "time", "application", "num_replicas", "batch_size"}
_OPENB_PODS = {"cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}
_OPENB_NODES = {"cpu_milli", "memory_mib", "gpu", "model"}


FORMATS = {
    "csv": "generic_table",
    "sacct": "sacct",
    "swf": "swf",
    "history": "stoker_history",
    "journal": "stoker_journal",
    "muri": "muri",
    "pollux": "pollux",
    "gavel": "gavel",
    "openb": "openb",
}
"""Values of `--format`, and the module of each with `read(path)`; imported when it is needed."""


def read(path: Path, format: str | None = None, time_unit: float | None = None) -> Workload:
    """Read a workload in the given format, or detect it.

    A time unit, in seconds, applies to the columns of a table that do not name theirs.
    """
    format = format or detect_format(path)
    if format == "csv":
        workload = generic_table.read(path, time_unit)
    elif time_unit is not None:
        raise TraceError(f"{path} has the format {format}, with known units; omit --time-unit.")
    else:
        module = import_module(f"stoker.simulate.traces.formats.{FORMATS[format]}")
        workload = module.read(path)
    rebase(workload.jobs)
    return workload


def detect_format(path: Path) -> str:
    """Return the format of a file; raise TraceError if it is unknown."""
    with open_bytes(path) as file:
        beginning = file.read(_DETECTION_BYTES)
    if beginning.startswith(b"SQLite format 3\0"):
        return "journal"
    if beginning.startswith(_PICKLES):
        raise TraceError(
            f"{path} is a Python pickle, which could run code when it is read; "
            "name the trace that it was made from, or write a table."
        )
    text = beginning.decode("utf-8-sig", "replace")
    first = next((line for line in text.splitlines() if line.strip()), "")
    format = _by_line(first)
    if format is not None:
        return format
    raise TraceError(f"{path}, line 1: {_unknown_format_reason(first)}.")


def _by_line(line: str) -> str | None:
    """Return the format of a file with this first line, None if it is unknown."""
    if line.lstrip().startswith("["):
        return "history"
    if line.lstrip().startswith("{"):
        return "history" if '"jobs"' in line or line.strip() == "{" else None
    if swf.is_line(line):
        return "swf"
    if sacct.is_header(line):
        return "sacct"
    _, names = generic_table.header_names(line)
    if set(names) >= _OPENB_PODS:
        return "openb"
    if set(names) >= _POLLUX:
        return "pollux"
    if muri.is_header(names):
        return "muri"
    if missing_column(find_columns(names)) is None:
        return "csv"
    return "gavel" if line.count("\t") >= _GAVEL_CELLS - 1 else None


def _unknown_format_reason(line: str) -> str:
    if not line:
        return "the file is empty; choose one with jobs"
    _, names = generic_table.header_names(line)
    if set(names) >= _OPENB_NODES:
        return "this is a node table; name the job table"
    columns = find_columns(names)
    absent = missing_column(columns)
    if absent is not None and len(columns) > 1:
        return f"no column is recognised as {absent}; rename the column that has them"
    return (
        "the format is not recognised; write a table with the columns "
        "submit_time,duration,num_gpus, or give its format with --format"
    )


def split(workload: Workload) -> dict[str, Workload]:
    """Return one workload per queue or virtual cluster, each starting at 0."""
    groups: dict[str, list[TraceJob]] = {}
    for job in workload.jobs:
        groups.setdefault(job.queue, []).append(replace(job))
    parts = {}
    for queue, jobs in sorted(groups.items()):
        rebase(jobs)
        title = f"{workload.title} {queue}" if queue else workload.title
        parts[queue] = Workload(title=title, jobs=jobs, notes=list(workload.notes))
    return parts
