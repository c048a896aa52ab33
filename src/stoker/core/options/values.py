"""Options as given, and values that several groups of options parse in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

from stoker.core.model.units import BadValue

FieldParsers = Mapping[str, tuple[str, Callable[[str, str], Any]]]
"""By option: the field that it sets, and the parser of its text; the second argument is its name
for messages."""


class Given(Struct, frozen=True):
    """The options of one command, as text."""

    words: dict[str, str]
    """Options with one value; empty: without a value, or to be removed by an edit."""
    lists: dict[str, list[str]]
    """Options that may have several values."""

    def is_set(self, key: str) -> bool:
        """Whether a switch is set; it may be given as text."""
        return parse_switch(self.words.get(key, ""))

    def has_any(self, keys: Iterable[str]) -> bool:
        """Whether one of these options is given, even without a value."""
        return any(key in self.words or key in self.lists for key in keys)


def flag(key: str) -> str:
    """Return an option as it is typed."""
    return f"--{key.replace('_', '-')}"


def parse_fields(parsers: FieldParsers, words: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields that the given options set."""
    return {
        field: parse(words[key], flag(key))
        for key, (field, parse) in parsers.items()
        if key in words
    }


def parse_switch(text: str, _: str = "") -> bool:
    """Parse a switch that may be given as text."""
    return text not in ("", "false", "no", "0")


def parse_text(text: str, what: str) -> str | None:
    """Return a text as it is; an empty one removes the value of before."""
    if "\0" in text:
        raise BadValue(f"{what} holds a zero byte.")
    return text or None


def parse_integer(text: str, what: str) -> int:
    """Parse a whole number of at most twelve digits."""
    if not re.fullmatch(r"[+-]?\d+", text.strip(), re.ASCII):
        raise BadValue(f"{what} '{text}' is not a whole number.")
    if len(text.strip().lstrip("+-")) > 12:
        raise BadValue(f"{what} '{text[:20]}' is too large a number.")
    return int(text)


def parse_count(text: str, what: str) -> int:
    """Parse a whole number of at least one."""
    number = parse_integer(text, what)
    if number < 1:
        raise BadValue(f"{what} must be at least 1.")
    return number


def parse_optional_count(text: str, what: str) -> int | None:
    """Parse a number of at least one; an empty text removes the value of before."""
    return parse_count(text, what) if text.strip() else None
