"""Estimated starts and ends as text: every command prints them through these functions."""

from __future__ import annotations

import time

from stoker.cli.output import clean, times

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARKS = {"similar": "~", "limit": "<"}
"""In columns: an estimate from similar jobs, and an upper bound from time limits."""


def cell(found: dict[str, Any] | None, *, verbose: bool = False, ranged: bool = True) -> str:
    """Return `in 2 h (1 h - 5 h)`, `in ~2 h` or `in <2 h`; with `verbose`, times of day."""
    if not found:
        return ""
    show = clock if verbose else away
    low, likely, high = found["low"], found["likely"], found["high"]
    if likely is None:
        return f"after {show(low)}"
    mark = MARKS.get(found.get("kind", ""), "")
    text = f"{mark}{show(likely)}" if verbose else f"in {mark}{show(likely)}"
    if not ranged or mark == "<":
        return text
    first, last = show(low), show(high) if high else "?"
    return text if first == last else f"{text} ({first} - {last})"


def sentence(found: dict[str, Any]) -> str:
    """Return `in about 2 h, at 21:31 (between 20:40 and 23:00), from its measured epochs`."""
    low, likely, high = found["low"], found["likely"], found["high"]
    basis = f", from {clean(found['basis'])}" if found.get("basis") else ""
    if likely is None:
        return f"after {clock(low)}, later than was simulated{basis}"
    if found.get("kind") == "limit":
        return f"in {away(likely)} at the latest, at {clock(likely)}{basis}"
    edges = f"between {clock(low)} and {clock(high)}" if high else f"not before {clock(low)}"
    return f"in about {away(likely)}, at {clock(likely)} ({edges}){basis}"


def away(moment: str) -> str:
    """Return how long it is until then, `3 h`; what has not happened is never `now`."""
    return times.rough(max((times.epoch(moment) or 0.0) - time.time(), 1.0))


def clock(moment: str) -> str:
    """Return `21:31`, with seconds within the next ten minutes, with the date unless today."""
    day, _, text = times.absolute(moment).partition(" ")
    if (times.epoch(moment) or 0.0) - time.time() > 600:
        text = text[:-3]
    today = times.absolute(times.iso(time.time())).partition(" ")[0]
    return text if day == today else f"{day} {text}"
