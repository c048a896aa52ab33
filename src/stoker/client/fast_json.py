"""JSON by the interpreter's C code, without the `json` package.

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
    """The attributes that the C scanner reads from its decoder."""

    strict = False
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def loads(text: str | bytes) -> Any:
    """Parse one JSON value; ValueError if the text is not JSON."""
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
    """Return a value as one line of JSON; non-ASCII letters are not escaped."""
    encode = _encoder({}, _reject, _quoted, None, ": ", ", ", False, False, True)
    return _escaped("".join(encode(value, 0)))


def pretty(value: object) -> str:
    """Return a value as indented JSON."""
    import json

    return _escaped(json.dumps(value, indent=2, ensure_ascii=False))


def _escaped(text: str) -> str:
    """Escape characters that could control a terminal: JSON requires it only below 32."""
    if text.isprintable():
        return text
    unprintable = (char for char in set(text) if not char.isprintable() and char != "\n")
    # A lone surrogate stands for a byte of a file name that is not UTF-8.
    codes = {
        ord(char): _ascii(char)[1:-1] for char in unprintable if not "\ud800" <= char <= "\udfff"
    }
    return text.translate(codes)


_quoted = _json.encode_basestring  # type: ignore[attr-defined, unused-ignore]
_ascii = _json.encode_basestring_ascii


def _reject(value: object) -> object:
    raise TypeError(f"{type(value).__name__} has no JSON form")
