"""Host load: cores and memory that processes other than stoker's jobs use on a node."""

from __future__ import annotations

import time

from stoker.core.events import NodeLoadMeasured
from stoker.core.measurement.foreign_use import (
    busy_share,
    foreign_load,
    guessed_share,
    is_significant,
)
from stoker.core.model.resources import CPU, MEMORY
from stoker.core.model.units import THOUSAND
from stoker.core.state.state import State
from stoker.probes.remote_facts import RemoteFacts


def free_cores(before: RemoteFacts | None, reading: RemoteFacts) -> float:
    """Return how many cores no process uses."""
    return reading.cores * (1 - _busy_share(before, reading))


def load_change(
    state: State, name: str, before: RemoteFacts | None, reading: RemoteFacts
) -> NodeLoadMeasured | None:
    """Return what others use on a node, if that has changed significantly."""
    held = {CPU: 0, MEMORY: 0}
    for job in state.running.values():
        part = job.placement.on(name) if job.placement is not None else None
        for take in part.allocations if part is not None else ():
            if take.type in held:
                held[take.type] += take.amount
    used = foreign_load(
        reading.cores, _busy_share(before, reading), held[CPU],
        reading.memory_total, reading.memory_available, held[MEMORY],
    )  # fmt: skip
    known = state.record.foreign_load.get(name, (0, 0))
    if not is_significant(known, used, (reading.cores * THOUSAND, reading.memory_total)):
        return None
    return NodeLoadMeasured(at=time.time(), node=name, cpus=used[0], memory=used[1])


def _busy_share(before: RemoteFacts | None, reading: RemoteFacts) -> float:
    """Return the share of CPU time in use, by two readings or else by the load average."""
    share = busy_share(before.jiffies, reading.jiffies) if before is not None else None
    return guessed_share(reading.load1, reading.cores) if share is None else share
