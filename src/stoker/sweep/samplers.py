"""Which points a sweep tries: each is known by its number alone, so that a sweep can be extended.

Nothing is remembered from one call to the next: number 7 of a random sweep depends on its seed,
the names of its parameters and the 7.
"""

from __future__ import annotations

from itertools import count as numbers

from stoker.sweep import sobol
from stoker.sweep.space import at, grid_values, size
from stoker.sweep.values import canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

ENDLESS = frozenset({"random", "sobol"})
PATIENCE = 2000
"""After so many repeats in a row a space has no other points to speak of."""


def points(definition: dict[str, Any], start: int, count: int) -> list[dict[str, Any]]:
    """The points `start` to `start + count - 1`; fewer where the sweep, or its samples, end."""
    end, whole = start + count, length(definition)
    if whole is not None:
        end = min(end, whole)
    make = _maker(definition)
    return [make(index) for index in range(start, end)]


def sequence(definition: dict[str, Any], start: int = 0) -> Iterator[dict[str, Any]]:
    """All points from `start` on: without end for random and sobol, whatever the samples."""
    make = _maker(definition)
    whole = None if definition["method"] in ENDLESS else length(definition)
    for index in numbers(start) if whole is None else range(start, whole):
        yield make(index)


def fresh(
    definition: dict[str, Any], start: int, known: Callable[[str], bool]
) -> Iterator[dict[str, Any]]:
    """Points from `start` on without those that are `known` by their canonical text, or repeat.

    Ends with the space: when all points of a finite one are known, there is nothing more.
    """
    seen: set[str] = set()
    endless = definition["method"] in ENDLESS
    whole = size(definition["parameters"]) if endless else None
    patience = PATIENCE if whole is None else min(4 * whole + 16, PATIENCE)
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
            if repeats >= patience:
                break
    if whole is not None:
        # Chance takes long to come by the last points of a finite space: look for them in order.
        for point in sequence({**definition, "method": "grid", "samples": None}):
            key = canonical(point)
            if key not in seen and not known(key):
                seen.add(key)
                yield point


def length(definition: dict[str, Any]) -> int | None:
    """How many points `points` has to give in all; None: without end."""
    samples: int | None = definition.get("samples")
    if definition["method"] in ENDLESS:
        return samples
    if definition["method"] == "list":
        whole: int | None = len(definition["points"])
    else:
        whole = size(definition["parameters"])
    if whole is None or samples is None:
        return whole if samples is None else samples
    return min(whole, samples)


def _maker(definition: dict[str, Any]) -> Callable[[int], dict[str, Any]]:
    """What makes the point of a number."""
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
    """In the order of nested loops, the last parameter fastest."""
    axes = []
    for name, spec in parameters.items():
        values = grid_values(spec)
        if values is None:
            raise ValueError(
                f"parameter {name} has infinitely many values, which method grid does not support"
            )
        axes.append((name, values))

    def make(index: int) -> dict[str, Any]:
        # Found from its number, last digit first: a grid of 10¹² points costs nothing.
        point: dict[str, Any] = dict.fromkeys(parameters)
        for name, values in reversed(axes):
            index, place = divmod(index, len(values))
            point[name] = values[place]
        return point

    return make


def _spread(parameters: dict[str, Any], seed: int, even: bool) -> Callable[[int], dict[str, Any]]:
    """Random, or `even` as Sobol's points are."""
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
    """The numbers in [0, 1) of one parameter; beyond Sobol's dimensions they are random ones."""
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
