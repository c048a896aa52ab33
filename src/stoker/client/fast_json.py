"""JSON by the interpreter's own C code, without the `json` package.

`json` imports `re` and `enum`, 8 ms that every command would pay; its C half needs neither.
"""

from __future__ import annotations

import _json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_scanner: Any = _json.make_scanner
_encoder: Any = _json.make_encoder


class _Settings:
    """What the C scanner reads from its decoder."""

    strict = False
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def loads(text: str | bytes) -> Any:
    """Parse one JSON value; ValueError when it is none."""
    if isinstance(text, bytes):
        text = text.decode()
    text = text.strip()
    try:
        value, end = _scanner(_Settings)(text, 0)
    except StopIteration:
        end = -1
    if end != len(text):
        raise ValueError("not JSON")
    return value


def dumps(value: object) -> str:
    """Write one JSON value on one line, keeping letters of any language as they are."""
    make = _encoder({}, _refuse, _quoted, None, ": ", ", ", False, False, True)
    return _escaped("".join(make(value, 0)))


def pretty(value: object) -> str:
    """Write one JSON value for a person to read."""
    import json

    return _escaped(json.dumps(value, indent=2, ensure_ascii=False))


def _escaped(text: str) -> str:
    """Escape what could steer a terminal: JSON itself demands that of characters below 32 only."""
    if text.isprintable():
        return text
    odd = (char for char in set(text) if not char.isprintable() and char != "\n")
    # Half a surrogate pair stands for a byte of a file name that is no UTF-8.
    codes = {ord(char): _ascii(char)[1:-1] for char in odd if not "\ud800" <= char <= "\udfff"}
    return text.translate(codes)


_quoted = _json.encode_basestring  # type: ignore[attr-defined, unused-ignore]
_ascii = _json.encode_basestring_ascii


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} has no JSON form")
