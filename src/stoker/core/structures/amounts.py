"""Sort keys and vectors of amounts, and the test whether amounts are available."""

from __future__ import annotations

from collections.abc import Callable, Iterable

SortKey = tuple[float, ...]
"""Position in the scheduling order; smaller is earlier."""
Amounts = tuple[float, ...]
"""Amount per resource type, requested or available."""
BEFORE_ALL: SortKey = (float("-inf"),)
"""Smaller than every sort key."""


def fits_within(requested: Amounts, available: Amounts) -> bool:
    """Whether every requested amount is available; surplus components are ignored."""
    for want, have in zip(requested, available, strict=False):  # noqa: SIM110 - all() is twice as slow
        if want > have:
            return False
    return True


CapacityTest = Callable[[Amounts], bool]
"""Whether amounts are available. Invariant: if so, then all smaller amounts are too."""


def at_most_any(alternatives: Iterable[Amounts]) -> CapacityTest:
    """Return the test whether one of several vectors of available amounts suffices."""
    vectors = tuple(alternatives)
    if not vectors:
        return lambda requested: False
    bounds = tuple(map(max, *vectors, vectors[0]))
    return lambda requested: (
        fits_within(requested, bounds) and any(fits_within(requested, vector) for vector in vectors)
    )
