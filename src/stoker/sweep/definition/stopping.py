"""The early-stopping rule of a sweep's definition."""

from __future__ import annotations

from stoker.sweep.validation import (
    invalid_value,
    reject_unknown_keys,
    require_choice,
    require_integer,
    require_number,
    table,
)

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
    fields = table(where, path, raw)
    kind = require_choice(where, f"{path}.kind", fields.get("kind"), KINDS)
    if kind == "median":
        reject_unknown_keys(where, path, fields, ("kind", "min", "trials", "every"))
        return {
            "kind": kind,
            "min": _step(where, f"{path}.min", fields.get("min", 5)),
            "trials": require_integer(where, f"{path}.trials", fields.get("trials", 5), 1),
            "every": _step(where, f"{path}.every", fields.get("every", 1)),
        }
    reject_unknown_keys(where, path, fields, ("kind", "min", "eta", "max", "brackets"))
    max_step = fields.get("max")
    least = _step(where, f"{path}.min", fields.get("min", _first(kind, max_step)))
    eta = require_number(where, f"{path}.eta", fields.get("eta", 3))
    if eta <= 1:
        raise invalid_value(where, f"{path}.eta", eta, "a number above 1")
    if max_step is not None and require_number(where, f"{path}.max", max_step) <= least:
        raise invalid_value(where, f"{path}.max", max_step, f"a number above its min, {least},")
    single = kind == "asha"
    brackets = require_integer(
        where, f"{path}.brackets", fields.get("brackets", 1 if single else BRACKETS), 1
    )
    if single != (brackets == 1):
        expected = "1 for kind asha" if single else "2 or more for kind hyperband"
        raise invalid_value(where, f"{path}.brackets", brackets, expected)
    return {"kind": kind, "min": least, "eta": eta, "max": max_step, "brackets": brackets}


def _first(kind: str, max_step: object) -> int | float:
    """Return the default first rung (docs/decisions/0010-sweeps.md)."""
    if kind == "asha" and isinstance(max_step, (int, float)) and FIRST <= max_step < 1e15:
        return max_step / FIRST if max_step % FIRST else int(max_step // FIRST)
    return 1


def _step(where: str, path: str, value: object) -> int | float:
    if require_number(where, path, value, "a step, a number above 0,") <= 0:
        raise invalid_value(where, path, value, "a step, a number above 0,")
    return value  # type: ignore[return-value] # it is one, or was refused
