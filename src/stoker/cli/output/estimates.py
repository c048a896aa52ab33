"""Estimated starts and ends as text."""

from __future__ import annotations

import time

from stoker.cli.output import clean, times
from stoker.wire import JsonObject

MARKS = {"similar": "~", "limit": "<"}
"""In columns: an estimate from similar jobs, and an upper bound from time limits."""


def estimate_cell(
    estimate: JsonObject | None, *, verbose: bool = False, ranged: bool = True
) -> str:
    """Return `in 2 h (1 h - 5 h)`, `in ~2 h` or `in <2 h`; with `verbose`, times of day."""
    if not estimate:
        return ""
    show = clock_time if verbose else time_until
    low, likely, high = estimate["low"], estimate["likely"], estimate["high"]
    if likely is None:
        return f"after {show(low)}"
    mark = MARKS.get(estimate.get("kind", ""), "")
    text = f"{mark}{show(likely)}" if verbose else f"in {mark}{show(likely)}"
    if not ranged or mark == "<":
        return text
    first, last = show(low), show(high) if high else "?"
    return text if first == last else f"{text} ({first} - {last})"


def estimate_sentence(estimate: JsonObject) -> str:
    """Return `in about 2 h, at 21:31 (between 20:40 and 23:00), from its measured epochs`."""
    low, likely, high = estimate["low"], estimate["likely"], estimate["high"]
    basis = f", from {clean(estimate['basis'])}" if estimate.get("basis") else ""
    if likely is None:
        return f"after {clock_time(low)}, later than was simulated{basis}"
    if estimate.get("kind") == "limit":
        return f"in {time_until(likely)} at the latest, at {clock_time(likely)}{basis}"
    edges = f"not before {clock_time(low)}"
    if high:
        edges = f"between {clock_time(low)} and {clock_time(high)}"
    return f"in about {time_until(likely)}, at {clock_time(likely)} ({edges}){basis}"


def time_until(iso_time: str) -> str:
    """Return the time until then, at least 1 s: `3 h`."""
    return times.approximate(max((times.epoch(iso_time) or 0.0) - time.time(), 1.0))


def clock_time(iso_time: str) -> str:
    """Return `21:31`: with seconds within ten minutes, with the date if not today."""
    day, _, text = times.absolute(iso_time).partition(" ")
    if (times.epoch(iso_time) or 0.0) - time.time() > 600:
        text = text[:-3]
    today = times.absolute(times.iso(time.time())).partition(" ")[0]
    return text if day == today else f"{day} {text}"
