"""When a message is due: after a moment for others like it, at the digest, or after quiet hours."""

from __future__ import annotations

import time

GROUP_SECONDS = 60.0
"""Messages of the same kind within this time are one."""
GROUPED = frozenset({"fail", "alarm", "requeue"})


def due_time(now: float, event: str, digest: str = "", quiet: str = "") -> float:
    """Return when a message is due; `digest` is HH:MM, `quiet` HH:MM-HH:MM, local time."""
    if digest:
        return next_time(now, digest)
    due = now + GROUP_SECONDS if event in GROUPED else now
    begin, _, end = quiet.partition("-")
    if quiet and _is_between(due, _minutes(begin), _minutes(end)):
        return next_time(due, end)
    return due


def next_time(now: float, clock: str) -> float:
    """Return the next time at which clocks show HH:MM."""
    local = time.localtime(now)
    hour, minute = divmod(_minutes(clock), 60)
    for days in (0, 1):
        # mktime takes day 32, and finds out about daylight saving time.
        at = time.mktime((local.tm_year, local.tm_mon, local.tm_mday + days,
                          hour, minute, 0, 0, 0, -1))  # fmt: skip
        if at > now:
            break
    return at


def _minutes(clock: str) -> int:
    hour, _, minute = clock.partition(":")
    return int(hour) * 60 + int(minute)


def _is_between(at: float, begin: int, end: int) -> bool:
    local = time.localtime(at)
    now = local.tm_hour * 60 + local.tm_min
    return begin <= now < end if begin <= end else now >= begin or now < end
