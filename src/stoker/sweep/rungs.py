"""The steps at which the trials of a sweep are compared with each other."""

from __future__ import annotations

from typing import Any

MOST = 60
"""So many comparisons are enough for any trial: the steps between them grow."""
GROWTH = 1.25
"""For the median rule, after its first comparisons: every step would be too many of them."""
DENSE = 20


def rungs(stop: dict[str, Any]) -> list[float]:
    """Rising steps. Nobody is compared at its end: there is nothing to save then."""
    if stop["kind"] == "median":
        return _steady(float(stop["min"]), float(stop["every"]))
    found: list[float] = []
    step, most = float(stop["min"]), stop["max"]
    while len(found) < MOST and (most is None or step < most) and step < 1e15:
        found.append(round(step, 9))
        step *= stop["eta"]
    return found


def _steady(first: float, every: float) -> list[float]:
    found = [first + every * number for number in range(DENSE)]
    while len(found) < MOST:
        found.append(float(round(found[-1] * GROWTH)))
    return found
