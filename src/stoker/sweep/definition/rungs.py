"""The steps at which the trials of a sweep are compared with each other."""

from __future__ import annotations

from math import ceil

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_RUNGS = 60
"""Maximum number of rungs; the distance between them grows."""
DENSE, GROWTH = 20, 1.25
"""Median rule: DENSE rungs at equal distances, then the distance grows by GROWTH."""
END_TOLERANCE = 1 - 1e-9
"""A step this close to the end is the end: 100/27 · 27 is slightly below 100."""


def rungs(stop: dict[str, Any]) -> list[float]:
    """Return the steps of the rungs, ascending; none is at the end, where a stop saves nothing."""
    if stop["kind"] == "median":
        return _steady(float(stop["min"]), float(stop["every"]))
    steps: list[float] = []
    step, max_step = float(stop["min"]), stop["max"]
    while (
        len(steps) < MAX_RUNGS
        and step < 1e15
        and (max_step is None or step < max_step * END_TOLERANCE)
    ):
        steps.append(_plain(step))
        step *= stop["eta"]
    return steps


def _steady(first: float, every: float) -> list[float]:
    steps: list[float] = []
    number = 0
    while len(steps) < MAX_RUNGS:
        steps.append(_plain(first + every * number))
        number = number + 1 if number < DENSE else ceil(number * GROWTH)
    return steps


def _plain(step: float) -> float:
    """Remove rounding errors: scripts do not report step 3.0000000004."""
    return float(f"{step:.12g}")
