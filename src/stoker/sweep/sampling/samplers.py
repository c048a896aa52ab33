"""Points of a sweep by their numbers, so that a sweep can be extended.

There is no state: point 7 of a random sweep depends only on the seed, the names of the parameters
and the number 7.
"""

from __future__ import annotations

from itertools import count as numbers

from stoker.sweep.sampling import sobol
from stoker.sweep.sampling.space import at, grid_values, size
from stoker.sweep.values import canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

ENDLESS = frozenset({"random", "sobol"})
MAX_REPEATS = 2000
"""After this many repeats in a row the space is considered exhausted."""


def points(definition: dict[str, Any], start: int, count: int) -> list[dict[str, Any]]:
    """Return points `start` to `start + count - 1`; fewer at the end of the sweep."""
    end, total = start + count, length(definition)
    if total is not None:
        end = min(end, total)
    make = _maker(definition)
    return [make(index) for index in range(start, end)]


def sequence(definition: dict[str, Any], start: int = 0) -> Iterator[dict[str, Any]]:
    """Yield all points from `start` on: infinitely many for random and sobol."""
    make = _maker(definition)
    total = None if definition["method"] in ENDLESS else length(definition)
    for index in numbers(start) if total is None else range(start, total):
        yield make(index)


def new_points(
    definition: dict[str, Any], start: int, known: Callable[[str], bool]
) -> Iterator[dict[str, Any]]:
    """Yield new points from `start` on, without repeats; `known` gets the canonical text.

    Ends when all points of a finite space are known.
    """
    seen: set[str] = set()
    endless = definition["method"] in ENDLESS
    space_size = size(definition["parameters"]) if endless else None
    max_repeats = MAX_REPEATS if space_size is None else min(4 * space_size + 16, MAX_REPEATS)
    repeats = 0
    for point in sequence(definition, start):
        key = canonical(point)
        if key not in seen:
            seen.add(key)
            repeats = 0
            if not known(key):
                yield point
        elif endless:
            repeats += 1
            if repeats >= max_repeats:
                break
    if space_size is not None:
        # Random sampling takes long to find the last points of a finite space: enumerate them.
        for point in sequence({**definition, "method": "grid", "samples": None}):
            key = canonical(point)
            if key not in seen and not known(key):
                seen.add(key)
                yield point


def length(definition: dict[str, Any]) -> int | None:
    """Return the number of all points; None if there are infinitely many."""
    samples: int | None = definition.get("samples")
    if definition["method"] in ENDLESS:
        return samples
    if definition["method"] == "list":
        total: int | None = len(definition["points"])
    else:
        total = size(definition["parameters"])
    if total is None or samples is None:
        return total if samples is None else samples
    return min(total, samples)


def _maker(definition: dict[str, Any]) -> Callable[[int], dict[str, Any]]:
    """Return the function number -> point."""
    method, parameters = definition["method"], definition["parameters"]
    if method == "list":
        rows = definition["points"]
        return lambda index: dict(rows[index])
    if method == "grid":
        return _grid(parameters)
    if method in ENDLESS:
        return _spread(parameters, definition.get("seed") or 0, even=method == "sobol")
    raise ValueError(f"the points of a sweep with method {method} depend on earlier results")


def _grid(parameters: dict[str, Any]) -> Callable[[int], dict[str, Any]]:
    """Enumerate a grid in the order of nested loops, the last parameter fastest."""
    axes = []
    for name, spec in parameters.items():
        values = grid_values(spec)
        if values is None:
            raise ValueError(
                f"parameter {name} has infinitely many values, which method grid does not support"
            )
        axes.append((name, values))

    def make(index: int) -> dict[str, Any]:
        # Computed from the number, last parameter first: a grid of 10¹² points needs no memory.
        point: dict[str, Any] = dict.fromkeys(parameters)
        for name, values in reversed(axes):
            index, position = divmod(index, len(values))
            point[name] = values[position]
        return point

    return make


def _spread(parameters: dict[str, Any], seed: int, even: bool) -> Callable[[int], dict[str, Any]]:
    """Sample at random, or by a Sobol sequence if `even`."""
    units: list[Callable[[int], float] | None] = []
    dimension = 0
    for name, spec in parameters.items():
        if "value" in spec:
            units.append(None)
        else:
            units.append(_unit(seed, name, dimension if even else sobol.DIMENSIONS))
            dimension += 1
    axes = list(zip(parameters.items(), units, strict=True))

    def make(index: int) -> dict[str, Any]:
        return {
            name: spec["value"] if unit is None else at(spec, unit(index))
            for (name, spec), unit in axes
        }

    return make


def _unit(seed: int, name: str, dimension: int) -> Callable[[int], float]:
    """Return the function number -> [0, 1) of one parameter; random beyond Sobol's dimensions."""
    from hashlib import blake2b

    base = blake2b(f"{seed}\0{name}".encode(), digest_size=8)

    def random(index: int) -> float:
        digest = base.copy()
        digest.update(b"\0%d" % index)
        return (int.from_bytes(digest.digest(), "big") >> 11) / (1 << 53)

    if dimension >= sobol.DIMENSIONS:
        return random
    key = int.from_bytes(base.digest()[:4], "big")
    return lambda index: sobol.unit(dimension, index % sobol.LENGTH, key)
