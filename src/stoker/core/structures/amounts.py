"""Sort keys and vectors of amounts, and the test whether amounts are available."""

from __future__ import annotations

from collections.abc import Callable

SortKey = tuple[float, ...]
"""Position in the scheduling order; smaller is earlier."""
Amounts = tuple[float, ...]
"""Amount per resource type, requested or available."""
BEFORE_ALL: SortKey = (float("-inf"),)
"""Smaller than every sort key."""
AFTER_ALL: SortKey = (float("inf"),)
"""Greater than every sort key."""


def fits_within(requested: Amounts, available: Amounts) -> bool:
    """Whether every requested amount is available; surplus components are ignored."""
    for want, have in zip(requested, available, strict=False):  # noqa: SIM110 - all() is twice as slow
        if want > have:
            return False
    return True


CapacityTest = Callable[[Amounts], bool]
"""Whether amounts are available. Invariant: if so, then all smaller amounts are too."""
