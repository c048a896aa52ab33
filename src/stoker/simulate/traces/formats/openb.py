"""Pods and machines of a cluster whose GPUs are shared, in the format of Alibaba's `openb` tables.

The pods are a table of `name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,…,creation_time,
deletion_time,…`: a pod asks for `num_gpu` GPUs, of each of which it wants `gpu_milli` thousandths,
of one of the models in `gpu_spec` (`V100M16|V100M32`; empty: any). The machines are a table of
`sn,cpu_milli,memory_mib,gpu,model` in the same folder, with `node_list` in its name.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from stoker.core.cluster import DeviceFacts, NodeFacts
from stoker.core.request import CPU, GPU, MEMORY
from stoker.core.units import THOUSAND
from stoker.simulate.traces.csv_reader import named_rows
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.field_parsers import (
    BadCell,
    bearable,
    in_our_time,
    missing,
    number,
    whole,
)
from stoker.simulate.traces.files import count_jobs, skipped_notes, sorted_workload
from stoker.simulate.workload import TraceJob, Workload

PODS = (
    "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time",
)  # fmt: skip
MACHINES = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POOL = "pool"
"""The one device of cores and of memory."""
MOST_GPUS, MOST = 1024, 10**12
"""Of a machine; and of thousandths or MiB in any cell."""


def read(path: Path) -> Workload:
    """The pods of a table, and the machines of the table beside it."""
    jobs: list[TraceJob] = []
    without: Counter[str] = Counter()
    rounded = 0
    for line, row in named_rows(path, PODS):
        if missing(row["deletion_time"] or "") or missing(row["creation_time"] or ""):
            without["no creation or deletion time"] += 1
            continue
        job, inexact = _load(path, line, row)
        if job.duration <= 0:
            without["the run time is zero"] += 1
            continue
        jobs.append(job)
        rounded += inexact
    nodes = _machines(path)
    notes = skipped_notes(without)
    if rounded:
        notes.append(
            f"{count_jobs(rounded, 'requests')} parts of several GPUs: rounded up to whole GPUs."
        )
    if not nodes:
        notes.append("No node table (*node_list*.csv) found in the same folder.")
    return sorted_workload(path, jobs, notes, nodes)


def _load(path: Path, line: int, row: dict[str, str | None]) -> tuple[TraceJob, bool]:
    """A pod as a job, and whether what it asks for had to be rounded up."""
    count = _cell(path, line, row, "num_gpu")
    milli = _cell(path, line, row, "gpu_milli") if count else 0
    if milli > THOUSAND:
        raise TraceError(
            f"{path}, line {line}: gpu_milli is {milli}; write at most {THOUSAND}, one whole GPU."
        )
    inexact = count > 1 and milli < THOUSAND
    begun = _seconds(path, line, row, "creation_time")
    seconds = _seconds(path, line, row, "deletion_time") - begun
    try:
        bearable(max(seconds, 0.0))
    except BadCell as error:
        raise TraceError(
            f"{path}, line {line}: the time from creation_time to deletion_time is not {error}; "
            "correct or delete the line."
        ) from None
    models = (row.get("gpu_spec") or "").split("|")
    return (
        TraceJob(
            submit_time=begun,
            duration=seconds,
            gpus=float(count) if count > 1 else count * milli / THOUSAND,
            cpus=_cell(path, line, row, "cpu_milli") / THOUSAND,
            ram=_cell(path, line, row, "memory_mib"),
            gpu_models=tuple(model.strip() for model in models if model.strip()),
        ),
        inexact,
    )


def _machines(path: Path) -> list[NodeFacts]:
    """What the table of machines says; none when there is no such table."""
    tables = sorted(each for each in path.parent.glob("*node_list*.csv*") if each != path)
    if len(tables) > 1:
        names = " and ".join(table.name for table in tables)
        raise TraceError(f"Several node tables found next to {path} ({names}); keep one.")
    return [
        _machine(table, line, row) for table in tables for line, row in named_rows(table, MACHINES)
    ]


def _machine(path: Path, line: int, row: dict[str, str | None]) -> NodeFacts:
    count = _cell(path, line, row, "gpu")
    if count > MOST_GPUS:
        raise TraceError(f"{path}, line {line}: gpu is {count}; a node has at most {MOST_GPUS}.")
    model = row["model"] or None
    types: dict[str, tuple[DeviceFacts, ...]] = {
        CPU: (DeviceFacts(POOL, _cell(path, line, row, "cpu_milli")),),
        MEMORY: (DeviceFacts(POOL, _cell(path, line, row, "memory_mib")),),
    }
    if count:
        types[GPU] = tuple(
            DeviceFacts(str(index), index=index, model=model) for index in range(count)
        )
    return NodeFacts(row["sn"] or f"node{line - 1}", types)


def _cell(path: Path, line: int, row: dict[str, str | None], column: str) -> int:
    """A whole number that is not negative."""
    text = row[column] or ""
    try:
        value = whole(text)
        if not 0 <= value < MOST:
            raise BadCell("a whole number from 0 up" if value < 0 else f"less than {MOST:,}")
    except BadCell as error:
        raise TraceError(f"{path}, line {line}: {column} is {text!r}; write {error}.") from None
    return value


def _seconds(path: Path, line: int, row: dict[str, str | None], column: str) -> float:
    text = row[column] or ""
    try:
        return in_our_time(number(text))
    except BadCell as error:
        raise TraceError(f"{path}, line {line}: {column} is {text!r}; write {error}.") from None
