"""Which format a recorded workload has is told by what is in it, never by what it is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.files import open_bytes, rebase
from stoker.simulate.traces.formats import generic_table as columns
from stoker.simulate.traces.formats import muri, sacct, swf
from stoker.simulate.workload import TraceJob, Workload

_LOOKED_AT = 1 << 16
"""So many bytes at the beginning are enough."""
_GAVEL_CELLS = 9
_POLLUX = {"name", "time", "application", "num_replicas", "batch_size"}
_PODS = {"cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}
_MACHINES = {"cpu_milli", "memory_mib", "gpu", "model"}


def _pollux(path: Path) -> Workload:
    from stoker.simulate.traces.formats import pollux

    return pollux.read(path)


def _gavel(path: Path) -> Workload:
    from stoker.simulate.traces.formats import gavel

    return gavel.read(path)


def _openb(path: Path) -> Workload:
    from stoker.simulate.traces.formats import openb

    return openb.read(path)


def _history(path: Path) -> Workload:
    from stoker.simulate.traces.formats import stoker_history as history

    return history.read(path)


def _journal(path: Path) -> Workload:
    from stoker.simulate.traces.formats import stoker_journal as journal

    return journal.read_file(path)


FORMATS: dict[str, Callable[[Path], Workload]] = {
    "csv": columns.read,
    "sacct": sacct.read,
    "swf": swf.read,
    "history": _history,
    "journal": _journal,
    "muri": muri.read,
    "pollux": _pollux,
    "gavel": _gavel,
    "openb": _openb,
}
"""What `--format` takes."""


def read(path: Path, format: str | None = None) -> Workload:
    """Read a workload of any format that we know, or of the one named."""
    if format is None:
        format = recognised(path)
    elif format not in FORMATS:
        raise TraceError(f"Unknown --format {format}; choose one of {', '.join(FORMATS)}.")
    workload = FORMATS[format](path)
    rebase(workload.jobs)
    return workload


def recognised(path: Path) -> str:
    """The name of the format that a file has."""
    with open_bytes(path) as file:
        beginning = file.read(_LOOKED_AT)
    if beginning.startswith(b"SQLite format 3\0"):
        return "journal"
    text = beginning.decode("utf-8-sig", "replace")
    first = next((line for line in text.splitlines() if line.strip()), "")
    found = _by_line(first)
    if found is not None:
        return found
    raise TraceError(f"{path}, line 1: {_why_not(first)}.")


def _by_line(line: str) -> str | None:
    """What a file is whose first line is this."""
    if line.lstrip().startswith("["):
        return "history"
    if line.lstrip().startswith("{"):
        return "history" if '"jobs"' in line or line.strip() == "{" else None
    if swf.is_line(line):
        return "swf"
    if sacct.is_header(line):
        return "sacct"
    _, names = columns.header_names(line)
    if set(names) >= _PODS:
        return "openb"
    if set(names) >= _POLLUX:
        return "pollux"
    if muri.is_header(names):
        return "muri"
    if columns.is_header(names):
        return "csv"
    return "gavel" if line.count("\t") >= _GAVEL_CELLS - 1 else None


def _why_not(line: str) -> str:
    if not line:
        return "the file is empty; choose one with jobs"
    _, names = columns.header_names(line)
    if set(names) >= _MACHINES:
        return "this is a node table; name the job table"
    absent = columns.absent_in(names)
    if absent is not None and len(columns.recognised(names)) > 1:
        return f"no column is recognised as {absent}; rename the column that has them"
    return (
        "the format is not recognised; write a table with the columns "
        "submit_time,duration,num_gpus, or give its format with --format"
    )


def split(workload: Workload) -> dict[str, Workload]:
    """One workload for each queue or virtual cluster, each with its first submission at 0."""
    groups: dict[str, list[TraceJob]] = {}
    for job in workload.jobs:
        groups.setdefault(job.queue, []).append(replace(job))
    parts = {}
    for queue, jobs in sorted(groups.items()):
        rebase(jobs)
        title = f"{workload.title} {queue}" if queue else workload.title
        parts[queue] = Workload(title=title, jobs=jobs, notes=list(workload.notes))
    return parts
