"""The steps at which the trials of a sweep are compared with each other."""

from __future__ import annotations

from math import ceil

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST = 60
"""So many comparisons are enough for any trial: the steps between them grow."""
DENSE, GROWTH = 20, 1.25
"""For the median rule, whose first comparisons are at equal distances: every step would be too
many of them."""
ABOUT = 1 - 1e-9
"""A step this close to the end is the end: 100/27 · 27 is not quite 100."""


def rungs(stop: dict[str, Any]) -> list[float]:
    """Rising steps. Nobody is compared at its end: there is nothing to save then."""
    if stop["kind"] == "median":
        return _steady(float(stop["min"]), float(stop["every"]))
    found: list[float] = []
    step, most = float(stop["min"]), stop["max"]
    while len(found) < MOST and step < 1e15 and (most is None or step < most * ABOUT):
        found.append(_plain(step))
        step *= stop["eta"]
    return found


def _steady(first: float, every: float) -> list[float]:
    found: list[float] = []
    number = 0
    while len(found) < MOST:
        found.append(_plain(first + every * number))
        number = number + 1 if number < DENSE else ceil(number * GROWTH)
    return found


def _plain(step: float) -> float:
    """Without the last digits, which are of our own making: nobody reports step 3.0000000004."""
    return float(f"{step:.12g}")
