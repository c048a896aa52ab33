"""Report lines with metrics."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_VALUES_BYTES = 3800
"""Bytes of names and values in a line; lines must be short enough to append atomically."""
MAX_TEXT, MAX_NAME = 100, 512
"""Characters of a text value, and of a name."""
MAX_CACHED_NAMES = 4096

_quoted_names: dict[str, str] = {}


def format_lines(epoch: int, at: float, step: object, metrics: Mapping[str, object]) -> list[str]:
    """Return metrics as one line, or as several if they do not fit into one."""
    head = f'{{"k":"metrics","e":{epoch},"t":{at:.3f},{_format_step(step)}"v":{{'
    lines: list[str] = []
    pairs: list[str] = []
    available = MAX_VALUES_BYTES
    for name, value in metrics.items():
        text = _format_value(value)
        if text is None:
            continue
        pair = f"{_quoted_names.get(name) or _quote_name(name)}:{text}"
        if len(pair) >= available and pairs:
            lines.append(f"{head}{','.join(pairs)}}}}}")
            pairs, available = [], MAX_VALUES_BYTES
        available -= len(pair) + 1
        pairs.append(pair)
    if pairs:
        lines.append(f"{head}{','.join(pairs)}}}}}")
    return lines


def _format_value(value: object) -> str | None:
    if isinstance(value, str):
        return _quote(value) if len(value) <= MAX_TEXT else None
    number = value if type(value) is float else _to_number(value)
    if number is None:
        return None
    if number - number == 0:
        return repr(number)
    return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"  # noqa: PLR0124


def _format_step(step: object) -> str:
    """Return the field of a step, empty without one; integers stay integers."""
    if step is None:
        return ""
    if type(step) is int and abs(step) < 1 << 53:
        return f'"s":{step},'
    number = _to_number(step)
    if number is None or number - number != 0:
        return ""
    return f'"s":{int(number)},' if number.is_integer() else f'"s":{number!r},'


def _quote_name(name: object) -> str:
    if len(_quoted_names) >= MAX_CACHED_NAMES:
        _quoted_names.clear()
    quoted = _quote(str(name)[:MAX_NAME])
    if isinstance(name, str):
        _quoted_names[name] = quoted
    return quoted


def _quote(text: str) -> str:
    from json import dumps

    return dumps(text)


def _to_number(value: object) -> float | None:
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
