"""From a reading to samples: whose process is whose on every GPU."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from msgspec import Struct

from stoker.core.foreign import Sample, Stranger
from stoker.probes.gpu_reading import GpuFacts, GpuProcess, GpuUse, Reading
from stoker.probes.host import process_info

Key = tuple[int, int]
"""A job and the number of its attempt."""
NOBODYS: Key = (0, 0)
"""Ours by its token, which names no attempt."""
_NUMBERS = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")
"""A process may have put any token into its environment: longer numbers are none of ours."""
Whose = Callable[[int], Key | None]
"""The attempt that a pid belongs to; None: it is not ours."""
Identify = Callable[[int], tuple[str, str] | None]
"""The user and the command behind a pid, as far as they are known; None: there is no such."""


class Seen(Struct, frozen=True):
    """One look at one GPU, and what of its memory is whose."""

    sample: Sample
    shares: dict[Key, int | None]
    """MiB by attempt, over all its processes; None where one of them does not say."""


def key_of(token: str | None, install: str) -> Key | None:
    """The attempt that a token of this install names; None: it is not of this install."""
    first, _, rest = (token or "").partition(".")
    if first != install or not rest:
        return None
    # On machines over SSH it ends in a point.
    numbers = _NUMBERS.fullmatch(rest.removesuffix("."))
    return (int(numbers[1]), int(numbers[2])) if numbers is not None else NOBODYS


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


def samples(reading: Reading, whose: Whose, identify: Identify = identify_here) -> dict[str, Seen]:
    """Return what is seen of each GPU, by UUID."""
    facts = {gpu.uuid: gpu for gpu in reading.facts}
    return {use.uuid: _seen(facts.get(use.uuid), use, whose, identify) for use in reading.use}


def _seen(facts: GpuFacts | None, use: GpuUse, whose: Whose, identify: Identify) -> Seen:
    shares: dict[Key, int | None] = {}
    strangers = []
    for process in use.processes:
        key = whose(process.pid)
        if key is not None:
            shares[key] = _sum(shares.get(key, 0), process.memory)
        elif (who := identify(process.pid)) is not None:
            strangers.append(_stranger(process, *who))
    known = [memory for memory in shares.values() if memory is not None]
    sample = Sample(
        uuid=use.uuid,
        memory_used=use.memory_used,
        memory_total=facts.memory if facts else None,
        utilization=use.utilization,
        ours=bool(shares),
        ours_memory=sum(known) if len(known) == len(shares) else None,
        strangers=tuple(strangers),
        processes_known=use.processes_known,
    )
    return Seen(sample, shares)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _stranger(process: GpuProcess, user: str, command: str) -> Stranger:
    return Stranger(
        pid=process.pid,
        user=user,
        command=command,
        memory=process.memory,
        graphics=process.graphics,
    )
