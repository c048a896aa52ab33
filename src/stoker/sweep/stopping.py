"""The early-stopping rule of a sweep's definition."""

from __future__ import annotations

from stoker.sweep.validation import bad, known_keys, number_in, one_of, table, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KINDS = ("asha", "hyperband", "median")
FIRST = 27
"""ASHA's default first rung, as a fraction of the known length."""
BRACKETS = 3
"""Default number of brackets of Hyperband."""


def stop_of(where: str, path: str, raw: object) -> dict[str, Any] | None:
    """Return the complete early-stopping rule with defaults."""
    if raw is None:
        return None
    found = table(where, path, raw)
    kind = one_of(where, f"{path}.kind", found.get("kind"), KINDS)
    if kind == "median":
        known_keys(where, path, found, ("kind", "min", "trials", "every"))
        return {
            "kind": kind,
            "min": _step(where, f"{path}.min", found.get("min", 5)),
            "trials": whole(where, f"{path}.trials", found.get("trials", 5), 1),
            "every": _step(where, f"{path}.every", found.get("every", 1)),
        }
    known_keys(where, path, found, ("kind", "min", "eta", "max", "brackets"))
    most = found.get("max")
    least = _step(where, f"{path}.min", found.get("min", _first(kind, most)))
    eta = number_in(where, f"{path}.eta", found.get("eta", 3))
    if eta <= 1:
        raise bad(where, f"{path}.eta", eta, "a number above 1")
    if most is not None and number_in(where, f"{path}.max", most) <= least:
        raise bad(where, f"{path}.max", most, f"a number above its min, {least},")
    single = kind == "asha"
    brackets = whole(where, f"{path}.brackets", found.get("brackets", 1 if single else BRACKETS), 1)
    if single != (brackets == 1):
        expected = "1 for kind asha" if single else "2 or more for kind hyperband"
        raise bad(where, f"{path}.brackets", brackets, expected)
    return {"kind": kind, "min": least, "eta": eta, "max": most, "brackets": brackets}


def _first(kind: str, most: object) -> int | float:
    """Return the default first rung (docs/decisions/0010-sweeps.md)."""
    if kind == "asha" and isinstance(most, (int, float)) and FIRST <= most < 1e15:
        return most / FIRST if most % FIRST else int(most // FIRST)
    return 1


def _step(where: str, path: str, value: object) -> int | float:
    if number_in(where, path, value, "a step, a number above 0,") <= 0:
        raise bad(where, path, value, "a step, a number above 0,")
    return value  # type: ignore[return-value] # it is one, or was refused
