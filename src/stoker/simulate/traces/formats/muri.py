"""The format of the Muri artifact: jobs with a model and its iterations, all times in ms.

Its header has the columns `iterations`, `iteration_time` and `resource_time_0` and so on. What
its jobs use of storage, processors, GPU and network in an iteration is not modelled here.
"""

from __future__ import annotations

from pathlib import Path

from stoker.simulate.traces.formats import generic_table as columns
from stoker.simulate.workload import Workload

NEEDED = frozenset({"num_gpu", "submit_time", "duration", "iterations", "iteration_time"})
_NAMES = {
    "submit_time": ("submit_time", 0.001),
    "duration": ("duration", 0.001),
    "gpus": ("num_gpu", 1.0),
    "name": ("model_name", 1.0),
}


def is_header(names: list[str]) -> bool:
    """Whether these are the columns of this format."""
    return NEEDED.issubset(names) and any(name.startswith("resource_time_") for name in names)


def read(path: Path) -> Workload:
    """Read a workload."""
    notes = ["All times in the file are milliseconds.", "Priorities in the file are ignored."]
    return columns.read_as(path, _NAMES, notes)
