"""Parameter importance: the share of the objective's variance that each explains alone."""

from __future__ import annotations

import math

from stoker.sweep.values import canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any

MIN_TRIALS = 4
"""With fewer trials no importance is computed."""
MAX_BINS = 8


def importance(rows: list[tuple[dict[str, Any], float]]) -> dict[str, float]:
    """Return a share between 0 and 1 for each parameter, corrected for chance.

    A row is the parameters of a trial and its objective value.
    """
    rows = [(params, value) for params, value in rows if math.isfinite(value)]
    if len(rows) < MIN_TRIALS:
        return {}
    # Squares of large numbers overflow; shares do not depend on the scale.
    scale = max(abs(value) for _, value in rows) or 1.0
    values = [value / scale for _, value in rows]
    names = dict.fromkeys(name for params, _ in rows for name in params)
    return {
        name: _share(_groups([params.get(name) for params, _ in rows]), values) for name in names
    }


def _share(groups: list[Hashable], values: list[float]) -> float:
    """Return epsilon squared: the variance between groups, less that of random groups."""
    count = len(values)
    members: dict[Hashable, list[float]] = {}
    for group, value in zip(groups, values, strict=True):
        members.setdefault(group, []).append(value)
    if not 1 < len(members) < count:
        return 0.0
    mean = math.fsum(values) / count
    total = math.fsum((value - mean) ** 2 for value in values)
    if total <= 0:
        return 0.0
    within = math.fsum(_spread(group) for group in members.values())
    by_chance = (len(members) - 1) * within / (count - len(members))
    return min(max((total - within - by_chance) / total, 0.0), 1.0)


def _spread(values: list[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)


def _groups(column: list[Any]) -> list[Hashable]:
    """Return the group of each trial: by its value, or by quantile if there are many."""
    if not all(_is_number(value) for value in column):
        return [canonical({"": value}) for value in column]
    bins = min(max(math.isqrt(len(column)), 2), MAX_BINS)
    if len(set(column)) <= max(bins, len(column) // 2):
        return list(column)
    # Equal values have the same rank, hence the same bin.
    ranks: dict[float, int] = {}
    for rank, value in enumerate(sorted(column)):
        ranks.setdefault(value, rank)
    return [ranks[value] * bins // len(column) for value in column]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
