"""What scripts hand us, made into numbers; whatever it is, nothing is raised."""

from __future__ import annotations


def number(value: object) -> float | None:
    """A number, if this is one or holds one; it may be infinite, or NaN."""
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (str, bytes)):
        return None
    try:
        item = getattr(value, "item", None)
        return float(item() if callable(item) else value)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - what a tensor may raise is not ours to know
        return None


def whole(value: object) -> int | None:
    """A number of epochs, if this can be read as one."""
    try:
        found = int(value)  # type: ignore[call-overload]
    except Exception:  # noqa: BLE001 - see above
        return None
    return found if found >= 0 else None
