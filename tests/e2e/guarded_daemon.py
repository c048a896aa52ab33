"""A daemon that records when a thread of the API accesses state of the daemon's thread.

`python guarded_daemon.py REPORT [OPTIONS OF THE DAEMON]`; each line of REPORT is one violation.
"""

import sys
import threading
import traceback
from typing import Any

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.node import Node
from stoker.core.model.job import Job
from stoker.core.state.state import State
from stoker.daemon.__main__ import main
from stoker.daemon.gpus.monitor import GpuMonitor
from stoker.daemon.nodes.gang import GangCoordinator
from stoker.daemon.nodes.registry import ExecutorRegistry
from stoker.daemon.sweeps.controller import SweepController
from stoker.daemon.training.monitor import TrainingMonitor
from stoker.daemon.workers.forecast_client import ForecastClient
from stoker.engine import Engine
from stoker.executors.linux.gpu_locks import GpuLocks
from stoker.executors.local.executor import LocalExecutor
from stoker.faults import FaultTracker
from stoker.store.sqlite import SqliteStore

GUARDED = (
    State, Cluster, Node, Job, Engine, FaultTracker, ExecutorRegistry, GangCoordinator, GpuMonitor,
    GpuLocks, LocalExecutor,
    ForecastClient, SweepController, TrainingMonitor, SqliteStore,
)  # fmt: skip


def guard(kind: Any, report: str) -> None:
    """Check the thread of every access to an attribute of this class."""
    plain = kind.__getattribute__

    def checked(self: Any, name: str) -> Any:
        thread = threading.current_thread().name
        if thread == "api" or thread.startswith("asyncio_"):
            caller = traceback.extract_stack(limit=2)[0]
            with open(report, "a") as file:
                file.write(f"{caller.filename}:{caller.lineno} reads {kind.__name__}.{name}\n")
        return plain(self, name)

    kind.__getattribute__ = checked


if __name__ == "__main__":
    for kind in GUARDED:
        guard(kind, sys.argv[1])
    sys.exit(main(["run", *sys.argv[2:]]))
