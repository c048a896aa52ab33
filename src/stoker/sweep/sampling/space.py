"""Search spaces: number of points, and the value of a parameter for a number in [0, 1).

A spec is one entry of a sweep's `parameters`: `{"value": 1}`, `{"values": [16, 32]}` or
`{"distribution": "log_uniform", "min": 1e-5, "max": 0.1}`.
"""

from __future__ import annotations

import math
from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

DIGITS = 10
"""Significant digits of a sampled number: readable, and the same on every machine, although
logarithms differ in their last bit."""
TAIL_DISTANCE = 2.0**-33
"""Distance from 0 and 1 at which the tails of a normal distribution are cut."""


class Multiples:
    """The multiples of q from `first` to `last` times q, computed on access."""

    def __init__(self, q: float, first: int, last: int) -> None:
        self.q, self.first, self.last = q, first, last

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __getitem__(self, index: int) -> float:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return multiple(self.first + index, self.q, as_int=False)


def size(parameters: dict[str, Any]) -> int | None:
    """Return the number of distinct points; None if there are infinitely many."""
    count = 1
    for spec in parameters.values():
        values = grid_values(spec)
        if values is None:
            return None
        count *= len(values)
    return count


def grid_values(spec: dict[str, Any]) -> Sequence[Any] | None:
    """Return all values of a parameter in order; None if there are infinitely many."""
    if "value" in spec:
        return [spec["value"]]
    if "values" in spec:
        return choices(spec)
    kind = spec["distribution"]
    if kind in {"int_uniform", "int_log_uniform"}:
        return range(spec["min"], spec["max"] + 1)
    if kind in {"q_uniform", "q_log_uniform"}:
        first, last = bounds(spec)
        if has_integer_values(spec):
            return range(first * spec["q"], last * spec["q"] + 1, spec["q"])
        return Multiples(spec["q"], first, last)  # type: ignore[return-value] # enough of one
    if kind in {"uniform", "log_uniform"} and spec["min"] == spec["max"]:
        return [float(spec["min"])]
    return None


def choices(spec: dict[str, Any]) -> list[Any]:
    """Return the values of a list with a probability above 0."""
    values: list[Any] = spec["values"]
    shares = spec.get("probabilities")
    if not shares:
        return values
    return [value for value, share in zip(values, shares, strict=True) if share > 0]


def at(spec: dict[str, Any], u: float) -> Any:
    """Return the value at quantile `u`: the inverse of the distribution function."""
    if "value" in spec:
        return spec["value"]
    if "values" in spec:
        return _choice(spec, u)
    kind = spec["distribution"]
    if kind == "int_uniform":
        count = spec["max"] - spec["min"] + 1
        return spec["min"] + min(int(u * count), count - 1)
    if kind == "int_log_uniform":
        # Up to the one after the last, so that the last has its full probability.
        whole = int(_log_between(spec["min"], spec["max"] + 1, u))
        return min(max(whole, spec["min"]), spec["max"])
    value = _quantile(spec, kind.removeprefix("q_"), u)
    return nearest(spec, value) if kind.startswith("q_") else tidy(spec, value)


def _quantile(spec: dict[str, Any], kind: str, u: float) -> float:
    """Return the number at quantile `u` of a continuous distribution."""
    if kind == "uniform":
        return float(spec["min"] + u * (spec["max"] - spec["min"]))
    if kind == "log_uniform":
        return _log_between(spec["min"], spec["max"], u)
    if kind == "normal":
        return _normal(spec, u)
    if kind == "log_normal":
        return math.exp(min(_normal(spec, u), 700.0))  # larger values overflow
    raise ValueError(f"{kind!r} is not a distribution")


def tidy(spec: dict[str, Any], value: float) -> float:
    """Round a number of a continuous distribution, within its limits."""
    kind = spec["distribution"]
    if kind in {"log_uniform", "log_normal"}:
        value = float(f"{value:.{DIGITS}g}")
    else:
        width = spec["sigma"] if kind == "normal" else spec["max"] - spec["min"]
        if width > 0:
            value = round(value, DIGITS - math.floor(math.log10(width)))
    if "min" in spec:
        value = min(max(value, spec["min"]), spec["max"])
    return float(value)


def nearest(spec: dict[str, Any], value: float) -> float:
    """Return the multiple of q nearest to a number, within the limits."""
    count = round(value / spec["q"])
    if "min" in spec:
        first, last = bounds(spec)
        count = min(max(count, first), last)
    return multiple(count, spec["q"], has_integer_values(spec))


def bounds(spec: dict[str, Any]) -> tuple[int, int]:
    """Return the factors of the first and last multiple of q within the limits."""
    return _bounds(spec["min"], spec["max"], spec["q"])


def multiple(count: int, q: float, as_int: bool) -> float:
    """Return a multiple of q in decimal arithmetic: 3 × 0.1 is 0.3."""
    return count * int(q) if as_int else float(count * _exact(q))


def has_integer_values(spec: dict[str, Any]) -> bool:
    """Return True if the multiples of q are integers."""
    limits = (spec[key] for key in ("q", "min", "max") if key in spec)
    return all(isinstance(limit, int) for limit in limits)


def _choice(spec: dict[str, Any], u: float) -> Any:
    values, shares = spec["values"], spec.get("probabilities")
    if not shares:
        return values[min(int(u * len(values)), len(values) - 1)]
    left = u * sum(shares)
    for value, share in zip(values, shares, strict=True):
        left -= share
        if left < 0:
            return value
    return choices(spec)[-1]  # remainder of a rounding error


def _log_between(low: float, high: float, u: float) -> float:
    if u <= 0 or low == high:
        return low
    if u >= 1:
        return high
    return math.exp(math.log(low) + u * (math.log(high) - math.log(low)))


def _normal(spec: dict[str, Any], u: float) -> float:
    from statistics import NormalDist

    deviation = NormalDist().inv_cdf(min(max(u, TAIL_DISTANCE), 1 - TAIL_DISTANCE))
    return float(spec["mu"] + spec["sigma"] * deviation)


@lru_cache(maxsize=256)
def _bounds(low: float, high: float, q: float) -> tuple[int, int]:
    first = math.ceil(_exact(low) / _exact(q))
    last = math.floor(_exact(high) / _exact(q))
    # Without a multiple between the limits, these are extended.
    return (first, last) if first <= last else (last, last)


@lru_cache(maxsize=256)
def _exact(value: float) -> Any:
    """Return the exact decimal: 0.1 is a tenth."""
    from decimal import Decimal

    return Decimal(repr(value))
