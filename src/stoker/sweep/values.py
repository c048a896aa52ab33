"""Values of parameters: parse, format and compare."""

from __future__ import annotations

import math
import re
from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

MAX_DIGITS = 300
"""Maximum digits of a number; longer ones are texts."""
_WHOLE = r"(?:0|[1-9](?:_?\d)*)"
_INTEGER = re.compile(rf"[+-]?{_WHOLE}", re.ASCII)
_FLOAT = re.compile(
    rf"[+-]?(?:{_WHOLE}\.?|{_WHOLE}?\.\d(?:_?\d)*)(?:[eE][+-]?\d(?:_?\d)*)?", re.ASCII
)
_REWRITTEN = re.compile(r"\+.*|.*_.*|[^eE]*\.\d+0|[^eE]{17,}", re.ASCII)
"""Numbers with another canonical form: 1.10, 1_000, +3."""
_WORDS = {"true": True, "false": False, "null": None}


def canonical(params: Mapping[str, object]) -> str:
    """Return the canonical text of parameters, regardless of order and notation."""
    return _encoder()(params)


@cache
def _encoder() -> Callable[[object], str]:
    from json import JSONEncoder

    return JSONEncoder(
        sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode


def nested(params: Mapping[str, object]) -> dict[str, object]:
    """Return parameters as nested dicts: `optimizer.lr` is `lr` in `optimizer`.

    If a name is a prefix of others (`a` and `a.b`), those keep their dots.
    """
    nested_params: dict[str, object] = {}
    for name, value in params.items():
        parts = name.split(".")
        heads = (".".join(parts[:end]) for end in range(1, len(parts)))
        if not all(parts) or any(head in params for head in heads):
            nested_params[name] = value
            continue
        table: dict[str, Any] = nested_params
        for part in parts[:-1]:
            table = table.setdefault(part, {})
        table[parts[-1]] = value
    return nested_params


def parse_number(text: str) -> int | float | str | bool | None:
    """Parse a text: `1e-4` is a number, `true` a boolean, `null` None.

    A number that would lose information (`007`) or is not finite (`nan`) stays a text.
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if text == "None":
        return None
    if len(text) <= MAX_DIGITS and _INTEGER.fullmatch(text):
        return int(text)
    if len(text) <= MAX_DIGITS and _FLOAT.fullmatch(text):
        value = float(text)
        return value if math.isfinite(value) else text
    return text


def parse_value(text: str) -> int | float | str | bool:
    """Parse a text to a value that a command gets back unchanged; else it stays a text.

    A version (`1.10`), an id (`1_000`, `007`), `null` and `None` reach the command as they were
    typed; `0.1`, `10` and `1e-4` are numbers.
    """
    value = parse_number(text)
    if value is None or isinstance(value, str):
        return text
    if isinstance(value, float) and repr(value) != text and _REWRITTEN.fullmatch(text):
        return text
    return text if type(value) is int and str(value) != text else value


def format_value(value: object) -> str:
    """Format a value for users: 0.0001, 1e-5, True, text without quotes."""
    if isinstance(value, float):
        return repr(value).replace("e-0", "e-")
    return value if isinstance(value, str) else repr(value)
