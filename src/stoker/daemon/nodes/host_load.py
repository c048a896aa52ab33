"""Host load: cores and memory that processes other than stoker's jobs use on a node."""

from __future__ import annotations

import time

from stoker.core.events import NodeLoadMeasured
from stoker.core.model.resources import CPU, MEMORY
from stoker.core.model.units import THOUSAND
from stoker.core.state.state import State
from stoker.probes.remote_facts import RemoteFacts

CoresAndMemory = tuple[int, int]
"""Thousandths of cores, and MiB."""
SMALLEST_SHARE = 20
"""A change of less than this fraction (1/n) of the node is noise."""


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


def busy_share(before: CoresAndMemory, now: CoresAndMemory) -> float | None:
    """Return the busy share of a node between two readings of (busy, all) jiffies.

    None if they do not tell: both at the same time, or a reboot between them.
    """
    busy, total = now[0] - before[0], now[1] - before[1]
    if total <= 0 or busy < 0:
        return None
    return min(busy / total, 1.0)


def guessed_share(load: float, cores: int) -> float:
    """Return the busy share estimated from the load average, for the first reading."""
    return min(max(load, 0.0) / cores, 1.0) if cores > 0 else 0.0


def foreign_load(
    cores: int,
    share: float,
    our_cores: int,
    memory_total: int,
    memory_available: int,
    our_memory: int,
) -> CoresAndMemory:
    """Return the foreign use: all use minus allocations of our attempts (thousandths, MiB).

    An allocation counts as used by its attempt, whether it is or not. An attempt that uses more
    than its allocation makes the surplus foreign, so that no more is placed on the node; one that
    uses less hides as much foreign use until it ends.
    """
    capacity = max(cores, 0) * THOUSAND
    used = round(min(max(share, 0.0), 1.0) * capacity)
    taken = min(max(memory_total - memory_available, 0), max(memory_total, 0))
    busy = used - max(our_cores, 0) - THOUSAND  # every node uses up to a core all the time
    return max(busy, 0), max(taken - max(our_memory, 0), 0)


def is_significant(before: CoresAndMemory, now: CoresAndMemory, totals: CoresAndMemory) -> bool:
    """Whether a change since the last report is significant; every significant one is journalled.

    A twentieth of the node is, if it is a whole core. So is the end of all use, however little it
    was. Its start is not: the use of an idle node fluctuates all the time.
    """
    steps = (max(totals[0] / SMALLEST_SHARE, THOUSAND), totals[1] / SMALLEST_SHARE)
    return any(
        was != is_now and (is_now == 0 or abs(is_now - was) >= step)
        for was, is_now, step in zip(before, now, steps, strict=True)
    )
