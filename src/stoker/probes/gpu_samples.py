"""GPU reading -> samples: which process on a GPU belongs to which attempt, which is foreign."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import asdict

from stoker.core.measurement.foreign_use import ForeignProcess, Sample
from stoker.core.model.job import AttemptId
from stoker.probes.gpu_reading import GpuFacts, GpuUse, Reading
from stoker.probes.host import process_info

UNKNOWN_ATTEMPT = AttemptId(0, 0)
"""Ours by its token, which names no attempt."""
_NUMBERS = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")
"""A process may put any token into its environment: longer numbers are not valid."""
OwnerOf = Callable[[int], AttemptId | None]
"""Returns the attempt that a pid belongs to; None for a foreign process."""
Identify = Callable[[int], tuple[str, str] | None]
"""Returns user and command of a pid, as far as known; None if there is no such process."""


class GpuSample(Struct, frozen=True):
    """One reading of one GPU, and its memory by attempt."""

    sample: Sample
    shares: dict[AttemptId, int | None]
    """MiB by attempt, over all its processes; None if it is unknown for one of them."""


def parse_token(token: str | None, install: str) -> AttemptId | None:
    """Return the attempt that a token names; None for a token of another install."""
    token_install, _, attempt = (token or "").partition(".")
    if token_install != install or not attempt:
        return None
    # On nodes over SSH it ends in a point.
    numbers = _NUMBERS.fullmatch(attempt.removesuffix("."))
    return AttemptId(int(numbers[1]), int(numbers[2])) if numbers is not None else UNKNOWN_ATTEMPT


def identify_local(pid: int) -> tuple[str, str] | None:
    """Return user and command of a process on this node; drivers list dead ones for a while."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return process_info(pid) or ("", "")  # where /proc hides processes of other users


def build_samples(
    reading: Reading, owner_of: OwnerOf, identify: Identify = identify_local
) -> dict[str, GpuSample]:
    """Return a sample of each GPU, by UUID."""
    gpus = {gpu.uuid: gpu for gpu in reading.facts}
    return {use.uuid: _sample(gpus.get(use.uuid), use, owner_of, identify) for use in reading.use}


def _sample(
    facts: GpuFacts | None, use: GpuUse, owner_of: OwnerOf, identify: Identify
) -> GpuSample:
    shares: dict[AttemptId, int | None] = {}
    foreign = []
    for process in use.processes:
        key = owner_of(process.pid)
        if key is not None:
            shares[key] = _sum(shares.get(key, 0), process.memory)
        elif (identity := identify(process.pid)) is not None:
            user, command = identity
            foreign.append(ForeignProcess(user=user, command=command, **asdict(process)))
    known = [memory for memory in shares.values() if memory is not None]
    sample = Sample(
        uuid=use.uuid,
        memory_used=use.memory_used,
        memory_total=facts.memory if facts else None,
        utilization=use.utilization,
        ours=bool(shares),
        ours_memory=sum(known) if len(known) == len(shares) else None,
        foreign_processes=tuple(foreign),
        processes_known=use.processes_known,
    )
    return GpuSample(sample, shares)


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b
