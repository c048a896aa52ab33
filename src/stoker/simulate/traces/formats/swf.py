"""Standard Workload Format of the Parallel Workloads Archive.

Jobs request processors; a processor is replayed as a GPU, because both are what jobs queue for.
The nodes are those of the header.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from sys import intern

from stoker.core.model.resources import NodeFacts
from stoker.simulate.traces.cluster_size import uniform_nodes
from stoker.simulate.traces.errors import invalid_line
from stoker.simulate.traces.field_parsers import (
    BadCell,
    amount,
    check_duration,
    check_time,
    limit_of,
    parse_cell,
)
from stoker.simulate.traces.files import open_text, skipped_notes, sorted_workload
from stoker.simulate.workload import TraceJob, Workload

FIELD_COUNT = 18
_PARTIAL = (2, 3, 4)
"""Status of a line for a part of a preempted job; another line has the whole job."""
_NO_TIME = "the run time is zero or missing"
_PARTIAL_LINE = "part of a job that has a line of its own"
_NOTHING = "no number of processors"


def is_line(line: str) -> bool:
    """Return True if a line may occur in this format."""
    if line.startswith(";"):
        return True
    cells = line.split()
    return len(cells) == FIELD_COUNT and all(cell.lstrip("-").replace(".", "", 1).isdecimal()
                                        for cell in cells)  # fmt: skip


def read(path: Path) -> Workload:
    """Read the jobs that ran, and the nodes of the header."""
    header: dict[str, str] = {}
    counts: Counter[str] = Counter()
    jobs: list[TraceJob] = []
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if line.startswith(";"):
                name, _, value = line.lstrip("; \t").partition(":")
                header.setdefault(name.strip().lower(), value.strip())
                continue
            cells = line.split()
            if not cells:
                continue
            if len(cells) != FIELD_COUNT:
                raise invalid_line(
                    path, number, f"expected {FIELD_COUNT} numbers, found {len(cells)}"
                )
            try:
                numbers = [float(cell) for cell in cells]
                if not isfinite(sum(numbers)):
                    raise ValueError
                job = _job(numbers, counts)
            except BadCell as error:
                raise invalid_line(path, number, error) from None
            except (ValueError, OverflowError):
                raise invalid_line(path, number, "a cell is not a number") from None
            if job is not None:
                jobs.append(job)
    nodes, node_note = _nodes(header)
    notes = ["One processor is replayed as one GPU.", node_note, *skipped_notes(counts)]
    return sorted_workload(path, jobs, notes, nodes)


def _job(cells: list[float], counts: Counter[str]) -> TraceJob | None:
    _, submit, _, run, allocated, _, _, requested, limit, _, status, user, _, app, queue, *_ = cells
    if int(status) in _PARTIAL:
        counts[_PARTIAL_LINE] += 1
        return None
    if not run > 0:
        counts[_NO_TIME] += 1
        return None
    processors = requested if requested > 0 else allocated
    if not processors > 0:
        counts[_NOTHING] += 1
        return None
    return TraceJob(
        submit_time=_checked("submission", submit, check_time),
        duration=_checked("duration", run, check_duration),
        gpus=_checked("processors", int(processors), lambda value: amount(str(value))),
        user=_numbered("user", user),
        name=_numbered("program", app),
        queue=_numbered("queue", queue),
        time_limit=limit_of(int(limit)) if limit > 0 else None,
    )


def _checked(name: str, value: float, check: Callable[[float], float]) -> float:
    return parse_cell(name, f"{value:g}", lambda _: check(value))


def _numbered(what: str, number: float) -> str:
    return intern(f"{what}{int(number)}") if number >= 0 else ""


def _nodes(header: dict[str, str]) -> tuple[list[NodeFacts], str]:
    """Return the nodes of the header, and a note about them."""
    processors, nodes = _size(header.get("maxprocs")), _size(header.get("maxnodes"))
    processors = processors or nodes
    if not processors:
        return [], "The header has no cluster size."
    if 1 < nodes < processors and processors % nodes == 0:
        per_node = processors // nodes
        note = f"The cluster has {nodes:,} nodes with {per_node} processors each."
        return uniform_nodes([(nodes, per_node)]), note
    # Nodes with one processor, or of several sizes: one pool.
    note = f"The cluster is one pool of {processors:,} processors."
    return uniform_nodes([(1, processors)]), note


def _size(text: str | None) -> int:
    words = (text or "").split()
    return int(words[0]) if words and words[0].isdecimal() and len(words[0]) < 8 else 0
