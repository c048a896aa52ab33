"""Muri traces: jobs with a model and its iterations, all times in ms.

The header has the columns `iterations`, `iteration_time`, `resource_time_0` and so on. The use of
storage, processors, GPU and network within an iteration is not modelled.
"""

from __future__ import annotations

from pathlib import Path

from stoker.simulate.traces.formats import generic_table
from stoker.simulate.workload import Workload

REQUIRED_COLUMNS = frozenset({"num_gpu", "submit_time", "duration", "iterations", "iteration_time"})
_COLUMNS = {
    "submit_time": ("submit_time", 0.001),
    "duration": ("duration", 0.001),
    "gpus": ("num_gpu", 1.0),
    "name": ("model_name", 1.0),
}


def is_header(names: list[str]) -> bool:
    """Return True if these are the columns of this format."""
    return REQUIRED_COLUMNS.issubset(names) and any(
        name.startswith("resource_time_") for name in names
    )


def read(path: Path) -> Workload:
    """Read the jobs of a trace."""
    notes = ["All times in the file are milliseconds.", "Priorities in the file are ignored."]
    return generic_table.read_as(path, _COLUMNS, notes)
