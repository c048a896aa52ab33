"""What others use of a machine's cores and memory, from what was measured there."""

from __future__ import annotations

from stoker.core.units import THOUSAND

Amounts = tuple[int, int]
"""Thousandths of cores, and MiB."""

SMALLEST_SHARE = 20
"""A change of less than a twentieth of the machine is noise."""


NEGLIGIBLE = THOUSAND
"""Every machine does a little all the time, which keeps nobody from using all its cores."""


def busy_share(before: Amounts, now: Amounts) -> float | None:
    """The share of its time that a machine was busy between two looks at (busy, all) jiffies.

    None where they do not say: the same moment twice, or a reboot between them.
    """
    busy, total = now[0] - before[0], now[1] - before[1]
    if total <= 0 or busy < 0:
        return None
    return min(busy / total, 1.0)


def guessed_share(load: float, cores: int) -> float:
    """The same from the load average, for the first look at a machine."""
    return min(max(load, 0.0) / cores, 1.0) if cores > 0 else 0.0


def others(
    cores: int,
    share: float,
    our_cores: int,
    memory_total: int,
    memory_available: int,
    our_memory: int,
) -> Amounts:
    """How much others use: all that is used, less what our attempts hold (thousandths, MiB).

    What is held counts as used by its holder, whether it is or not. So an attempt that uses
    more than it holds makes the surplus look like somebody else's, which keeps us from
    putting more there; one that uses less hides as much of what others do, and gives it up
    when it ends.
    """
    capacity = max(cores, 0) * THOUSAND
    used = round(min(max(share, 0.0), 1.0) * capacity)
    taken = min(max(memory_total - memory_available, 0), max(memory_total, 0))
    busy = used - max(our_cores, 0) - NEGLIGIBLE
    return max(busy, 0), max(taken - max(our_memory, 0), 0)


def worth_telling(before: Amounts, now: Amounts, totals: Amounts) -> bool:
    """Whether a change since what was told last is real: every one is journalled.

    A twentieth of the machine is, if it is a whole core. So is the end of all use, however
    little it was. Its beginning is not: an idle machine does a little now and then, and
    would tell so all day.
    """
    steps = (max(totals[0] / SMALLEST_SHARE, THOUSAND), totals[1] / SMALLEST_SHARE)
    return any(
        was != is_now and (is_now == 0 or abs(is_now - was) >= step)
        for was, is_now, step in zip(before, now, steps, strict=True)
    )
