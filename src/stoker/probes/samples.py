"""From a reading to samples: whose process is whose on every GPU."""

from __future__ import annotations

import os
from collections.abc import Callable

from stoker.core.foreign import Sample, Stranger
from stoker.probes.host import process_info
from stoker.probes.readings import GpuFacts, GpuProcess, GpuUse, Reading


def samples(reading: Reading, is_ours: Callable[[int], bool]) -> dict[str, Sample]:
    """Return a sample per GPU by UUID; `is_ours` says whether a pid belongs to an attempt."""
    facts = {gpu.uuid: gpu for gpu in reading.facts}
    return {use.uuid: _sample(facts.get(use.uuid), use, is_ours) for use in reading.use}


def _sample(facts: GpuFacts | None, use: GpuUse, is_ours: Callable[[int], bool]) -> Sample:
    ours, strangers = [], []
    for process in use.processes:
        if is_ours(process.pid):
            ours.append(process)
        elif _exists(process.pid):
            strangers.append(_stranger(process))
    known = [process.memory for process in ours if process.memory is not None]
    return Sample(
        uuid=use.uuid,
        memory_used=use.memory_used,
        memory_total=facts.memory if facts else None,
        utilization=use.utilization,
        ours=bool(ours),
        ours_memory=sum(known) if len(known) == len(ours) else None,
        strangers=tuple(strangers),
        processes_known=use.processes_known,
    )


def _exists(pid: int) -> bool:
    """Tell whether a process is there: drivers list the dead for a while."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _stranger(process: GpuProcess) -> Stranger:
    info = process_info(process.pid)  # None where /proc hides other users' processes
    return Stranger(
        pid=process.pid,
        user=info.user if info else "",
        command=info.command if info else "",
        memory=process.memory,
        graphics=process.graphics,
    )
