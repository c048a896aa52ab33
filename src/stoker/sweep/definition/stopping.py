"""The early-stopping rule of a sweep's definition."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.sweep.validation import Field

KINDS = ("asha", "hyperband", "median")
FIRST = 27
"""ASHA's default first rung, as a fraction of the known length."""
BRACKETS = 3
"""Default number of brackets of Hyperband."""


def stop_of(field: Field) -> dict[str, Any] | None:
    """Return the complete early-stopping rule with defaults."""
    if field.value is None:
        return None
    stop = field.table()
    kind = stop.field("kind").choice(KINDS)
    if kind == "median":
        stop.reject_unknown(("kind", "min", "trials", "every"))
        return {
            "kind": kind,
            "min": _step(stop.field("min", 5)),
            "trials": stop.field("trials", 5).integer(1),
            "every": _step(stop.field("every", 1)),
        }
    stop.reject_unknown(("kind", "min", "eta", "max", "brackets"))
    max_step = stop.field("max")
    least = _step(stop.field("min", _first(kind, max_step.value)))
    eta = stop.field("eta", 3)
    if eta.number() <= 1:
        raise eta.invalid("a number above 1")
    if max_step.value is not None and max_step.number() <= least:
        raise max_step.invalid(f"a number above its min, {least},")
    single = kind == "asha"
    brackets = stop.field("brackets", 1 if single else BRACKETS)
    if single != (brackets.integer(1) == 1):
        raise brackets.invalid("1 for kind asha" if single else "2 or more for kind hyperband")
    return {
        "kind": kind, "min": least, "eta": eta.value, "max": max_step.value,
        "brackets": brackets.value,
    }  # fmt: skip


def _first(kind: str, max_step: object) -> int | float:
    """Return the default first rung (docs/decisions/0010-sweeps.md)."""
    if kind == "asha" and isinstance(max_step, (int, float)) and FIRST <= max_step < 1e15:
        return max_step / FIRST if max_step % FIRST else int(max_step // FIRST)
    return 1


def _step(field: Field) -> int | float:
    expected = "a step, a number above 0,"
    step = field.number(expected)
    if step <= 0:
        raise field.invalid(expected)
    return step
