"""Convert values of user code to numbers without raising."""

from __future__ import annotations


def to_number(value: object) -> float | None:
    """Return a number, also of a tensor with one element; it may be infinite or NaN."""
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (str, bytes)):
        return None
    try:
        item = getattr(value, "item", None)
        return float(item() if callable(item) else value)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - a tensor may raise anything
        return None


def to_epochs(value: object) -> int | None:
    """Return a number of epochs, None if the value is not one."""
    try:
        epochs = int(value)  # type: ignore[call-overload]
    except Exception:  # noqa: BLE001 - see above
        return None
    return epochs if epochs >= 0 else None
