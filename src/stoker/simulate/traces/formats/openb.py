"""Alibaba's `openb` tables: pods and nodes of a cluster with shared GPUs.

The table of pods has `name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,…,creation_time,
deletion_time,…`: a pod requests `gpu_milli` thousandths of each of `num_gpu` GPUs of one of the
models in `gpu_spec` (`V100M16|V100M32`; empty: any). The table of nodes has
`sn,cpu_milli,memory_mib,gpu,model`, in the same directory, with `node_list` in its name.

Some published tables of pods end after `gpu_milli`: they were made for a study in which pods arrive
one after another and none ends. Their order is kept; interval and run time are assumed.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from stoker.core.model.resources import NodeFacts
from stoker.core.model.units import THOUSAND
from stoker.simulate.traces.cluster_size import node_facts
from stoker.simulate.traces.csv_reader import Row, named_rows
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.field_parsers import (
    BadCell,
    check_duration,
    missing,
    parse_integer,
    parse_time,
)
from stoker.simulate.traces.files import count_jobs, skipped_notes, sorted_workload
from stoker.simulate.workload import TraceJob, Workload

POD_COLUMNS = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
TIME_COLUMNS = ("creation_time", "deletion_time")
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
MAX_NODE_GPUS, MAX_VALUE = 1024, 10**12
"""GPUs of a node; thousandths or MiB in any cell."""
INTERVAL_SECONDS, RUN_SECONDS = 1.0, 3600.0
"""Assumed of pods without times: an arrival each second and one hour each load the published
cluster to two thirds."""


def read(path: Path) -> Workload:
    """Read the pods of a table, and the nodes of the table in its directory."""
    jobs: list[TraceJob] = []
    skipped: Counter[str] = Counter()
    rounded = timeless = 0
    for row in named_rows(path, POD_COLUMNS):
        if not row.has_any(TIME_COLUMNS):
            timeless += 1
        elif missing(row.text("deletion_time")) or missing(row.text("creation_time")):
            skipped["no creation or deletion time"] += 1
            continue
        job, inexact = _pod_job(row, timeless)
        if job.duration <= 0:
            skipped["the run time is zero"] += 1
            continue
        jobs.append(job)
        rounded += inexact
    nodes, ignored = _read_nodes(path)
    notes = skipped_notes(skipped)
    if timeless:
        notes.append("No times: one job is submitted per second, in this order, and runs one hour.")
    if rounded:
        notes.append(
            f"{count_jobs(rounded, 'requests')} parts of several GPUs: rounded up to whole GPUs."
        )
    if not nodes:
        notes.append("No node table (*node_list*.csv) found in the same folder.")
    notes += [f"Node table {name} ignored: another one lists a part of it." for name in ignored]
    return sorted_workload(path, jobs, notes, nodes)


def _pod_job(row: Row, number: int) -> tuple[TraceJob, bool]:
    """Return a pod as a job, and whether its request was rounded up; number 0: it has times."""
    count = row.parse("num_gpu", _amount)
    milli = row.parse("gpu_milli", _amount) if count else 0
    if milli > THOUSAND:
        raise row.error(f"gpu_milli is {milli}, more than {THOUSAND}, one whole GPU")
    submit_time, seconds = (
        (number * INTERVAL_SECONDS, RUN_SECONDS) if number else _recorded_times(row)
    )
    models = row.text("gpu_spec").split("|")
    job = TraceJob(
        submit_time=submit_time,
        duration=seconds,
        gpus=float(count) if count > 1 else count * milli / THOUSAND,
        cpus=row.parse("cpu_milli", _amount) / THOUSAND,
        ram=row.parse("memory_mib", _amount),
        gpu_models=tuple(model.strip() for model in models if model.strip()),
    )
    return job, count > 1 and milli < THOUSAND


def _recorded_times(row: Row) -> tuple[float, float]:
    """Return submit time and run time in seconds."""
    submit_time = row.parse("creation_time", parse_time)
    seconds = row.parse("deletion_time", parse_time) - submit_time
    try:
        check_duration(max(seconds, 0.0))
    except BadCell as error:
        raise row.error(f"the time from creation_time to deletion_time is not {error}") from None
    return submit_time, seconds


def _read_nodes(path: Path) -> tuple[list[NodeFacts], list[str]]:
    """Return the nodes, and the names of ignored tables.

    Of two tables, of which one lists a part of the other, the part is read: the published cluster
    is listed with and without its nodes without GPUs, and the study used those with GPUs.
    """
    paths = sorted(
        table_path for table_path in path.parent.glob("*node_list*.csv*") if table_path != path
    )
    tables = [(list(map(_node, named_rows(table, NODE_COLUMNS))), table.name) for table in paths]
    if not tables:
        return [], []
    tables.sort(key=lambda table: len(table[0]))
    (nodes, _), *others = tables
    smallest = {node.name for node in nodes}
    if any(not smallest <= {node.name for node in other} for other, _ in others):
        names = " and ".join(table.name for table in paths)
        raise TraceError(f"Several node tables found next to {path} ({names}); keep one.")
    return nodes, [name for _, name in others]


def _node(row: Row) -> NodeFacts:
    count = row.parse("gpu", _amount)
    if count > MAX_NODE_GPUS:
        raise row.error(f"gpu is {count}; a node has at most {MAX_NODE_GPUS}")
    return node_facts(
        row.text("sn") or f"node{row.line - 1}",
        count,
        row.text("model") or None,
        cpus=row.parse("cpu_milli", _amount) / THOUSAND,
        ram=row.parse("memory_mib", _amount),
    )


def _amount(text: str) -> int:
    """Parse a non-negative integer."""
    value = parse_integer(text)
    if not 0 <= value < MAX_VALUE:
        raise BadCell("a whole number from 0 up" if value < 0 else f"less than {MAX_VALUE:,}")
    return value
