"""From a reading to samples: whose process is whose on every GPU."""

from __future__ import annotations

import os
from collections.abc import Callable

from stoker.core.foreign import Sample, Stranger
from stoker.probes.host import process_info
from stoker.probes.readings import GpuFacts, GpuProcess, GpuUse, Reading

IsOurs = Callable[[int], bool]
"""Whether a pid belongs to an attempt."""
Identify = Callable[[int], tuple[str, str] | None]
"""The user and the command behind a pid, as far as they are known; None: there is no such."""


def identify_here(pid: int) -> tuple[str, str] | None:
    """Who a process on this very machine is. Drivers list the dead for a while."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    info = process_info(pid)  # None where /proc hides other users' processes
    return (info.user, info.command) if info else ("", "")


def samples(
    reading: Reading, is_ours: IsOurs, identify: Identify = identify_here
) -> dict[str, Sample]:
    """Return a sample per GPU by UUID."""
    facts = {gpu.uuid: gpu for gpu in reading.facts}
    return {use.uuid: _sample(facts.get(use.uuid), use, is_ours, identify) for use in reading.use}


def _sample(facts: GpuFacts | None, use: GpuUse, is_ours: IsOurs, identify: Identify) -> Sample:
    ours, strangers = [], []
    for process in use.processes:
        if is_ours(process.pid):
            ours.append(process)
        elif (who := identify(process.pid)) is not None:
            strangers.append(_stranger(process, *who))
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


def _stranger(process: GpuProcess, user: str, command: str) -> Stranger:
    return Stranger(
        pid=process.pid,
        user=user,
        command=command,
        memory=process.memory,
        graphics=process.graphics,
    )
