"""Alibaba's `openb` tables: pods and nodes of a cluster with shared GPUs.

The table of pods has `name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,…,creation_time,
deletion_time,…`: a pod requests `gpu_milli` thousandths of each of `num_gpu` GPUs of one of the
models in `gpu_spec` (`V100M16|V100M32`; empty: any). The table of nodes has
`sn,cpu_milli,memory_mib,gpu,model`, in the same directory, with `node_list` in its name.
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
    check_duration,
    check_time,
    missing,
    parse_integer,
    parse_number,
)
from stoker.simulate.traces.files import count_jobs, skipped_notes, sorted_workload
from stoker.simulate.workload import TraceJob, Workload

POD_COLUMNS = (
    "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time",
)  # fmt: skip
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POOL = "pool"
"""Name of the single device for cores, and for memory."""
MAX_NODE_GPUS, MAX_VALUE = 1024, 10**12
"""GPUs of a node; thousandths or MiB in any cell."""


def read(path: Path) -> Workload:
    """Read the pods of a table, and the nodes of the table in its directory."""
    jobs: list[TraceJob] = []
    skipped: Counter[str] = Counter()
    rounded = 0
    for line, row in named_rows(path, POD_COLUMNS):
        if missing(row["deletion_time"] or "") or missing(row["creation_time"] or ""):
            skipped["no creation or deletion time"] += 1
            continue
        job, inexact = _pod_job(path, line, row)
        if job.duration <= 0:
            skipped["the run time is zero"] += 1
            continue
        jobs.append(job)
        rounded += inexact
    nodes = _read_nodes(path)
    notes = skipped_notes(skipped)
    if rounded:
        notes.append(
            f"{count_jobs(rounded, 'requests')} parts of several GPUs: rounded up to whole GPUs."
        )
    if not nodes:
        notes.append("No node table (*node_list*.csv) found in the same folder.")
    return sorted_workload(path, jobs, notes, nodes)


def _pod_job(path: Path, line: int, row: dict[str, str | None]) -> tuple[TraceJob, bool]:
    """Return a pod as a job, and whether its request was rounded up."""
    count = _cell(path, line, row, "num_gpu")
    milli = _cell(path, line, row, "gpu_milli") if count else 0
    if milli > THOUSAND:
        raise TraceError(
            f"{path}, line {line}: gpu_milli is {milli}; write at most {THOUSAND}, one whole GPU."
        )
    inexact = count > 1 and milli < THOUSAND
    submit_time = _seconds(path, line, row, "creation_time")
    seconds = _seconds(path, line, row, "deletion_time") - submit_time
    try:
        check_duration(max(seconds, 0.0))
    except BadCell as error:
        raise TraceError(
            f"{path}, line {line}: the time from creation_time to deletion_time is not {error}; "
            "correct or delete the line."
        ) from None
    models = (row.get("gpu_spec") or "").split("|")
    return (
        TraceJob(
            submit_time=submit_time,
            duration=seconds,
            gpus=float(count) if count > 1 else count * milli / THOUSAND,
            cpus=_cell(path, line, row, "cpu_milli") / THOUSAND,
            ram=_cell(path, line, row, "memory_mib"),
            gpu_models=tuple(model.strip() for model in models if model.strip()),
        ),
        inexact,
    )


def _read_nodes(path: Path) -> list[NodeFacts]:
    """Return the nodes of the node table; empty without one."""
    tables = sorted(
        table_path for table_path in path.parent.glob("*node_list*.csv*") if table_path != path
    )
    if len(tables) > 1:
        names = " and ".join(table.name for table in tables)
        raise TraceError(f"Several node tables found next to {path} ({names}); keep one.")
    return [
        _node(table, line, row) for table in tables for line, row in named_rows(table, NODE_COLUMNS)
    ]


def _node(path: Path, line: int, row: dict[str, str | None]) -> NodeFacts:
    count = _cell(path, line, row, "gpu")
    if count > MAX_NODE_GPUS:
        raise TraceError(
            f"{path}, line {line}: gpu is {count}; a node has at most {MAX_NODE_GPUS}."
        )
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
    """Parse a non-negative integer."""
    text = row[column] or ""
    try:
        value = parse_integer(text)
        if not 0 <= value < MAX_VALUE:
            raise BadCell("a whole number from 0 up" if value < 0 else f"less than {MAX_VALUE:,}")
    except BadCell as error:
        raise TraceError(f"{path}, line {line}: {column} is {text!r}; write {error}.") from None
    return value


def _seconds(path: Path, line: int, row: dict[str, str | None], column: str) -> float:
    text = row[column] or ""
    try:
        return check_time(parse_number(text))
    except BadCell as error:
        raise TraceError(f"{path}, line {line}: {column} is {text!r}; write {error}.") from None
