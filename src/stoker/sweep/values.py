"""Values of parameters: read as people type them, shown as people write them, compared."""

from __future__ import annotations

import math
import re
from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LONGEST = 300
"""Digits that a number may have; what is longer is a text."""
_WHOLE = r"(?:0|[1-9](?:_?\d)*)"
_INTEGER = re.compile(rf"[+-]?{_WHOLE}", re.ASCII)
_FLOAT = re.compile(
    rf"[+-]?(?:{_WHOLE}\.?|{_WHOLE}?\.\d(?:_?\d)*)(?:[eE][+-]?\d(?:_?\d)*)?", re.ASCII
)
_WORDS = {"true": True, "false": False, "null": None}


def canonical(params: Mapping[str, object]) -> str:
    """The one text that stands for these parameters, however they were ordered or written."""
    return _encoder()(params)


@cache
def _encoder() -> Callable[[object], str]:
    from json import JSONEncoder

    return JSONEncoder(
        sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode


def number(text: str) -> int | float | str | bool | None:
    """What a typed text means: `1e-4` is a number, `true` and `null` are what they say.

    A number that would lose something (`007`) or is none (`nan`) stays the text it was.
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if text == "None":
        return None
    if len(text) <= LONGEST and _INTEGER.fullmatch(text):
        return int(text)
    if len(text) <= LONGEST and _FLOAT.fullmatch(text):
        value = float(text)
        return value if math.isfinite(value) else text
    return text


def shown(value: object) -> str:
    """A value as a person would write it: 0.0001, 1e-5, True, text without quotes."""
    if isinstance(value, float):
        return repr(value).replace("e-0", "e-")
    return value if isinstance(value, str) else repr(value)
