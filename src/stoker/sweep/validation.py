"""Checks of a sweep's definition and their messages."""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

MAX_VALUES = 100_000
"""Maximum number of listed values, and of rows of a table."""
MAX_DEPTH = 20
"""Maximum nesting of lists and dicts."""
LONGEST_TEXT = 10_000
"""A trial's parameters are passed in a variable, which has at most 128 KiB."""


class InvalidSweep(ValueError):
    """An invalid sweep: one sentence with the file, the key and what was expected."""


def renamed(error: InvalidSweep, where: str, names: Mapping[str, str]) -> InvalidSweep:
    """Return the same error with keys as they are called in the user's file."""
    import re

    head, text = f"{where}: ", str(error)
    if not text.startswith(head):
        return error
    text = text.removeprefix(head)
    for ours in sorted(names, key=len, reverse=True):
        if re.match(rf"{re.escape(ours)}(?![\w.[])", text):
            text = names[ours] + text[len(ours) :]
            head = "" if text.startswith("-") else head
            break
    for ours, theirs in names.items():
        text = text.replace(f"; {ours} needs", f"; {theirs} needs")
    return InvalidSweep(head + text)


def seen(value: object) -> str:
    """Return a short text for any value."""
    if isinstance(value, dict):
        return "a table of keys"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if value is None:
        return "empty"
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def guess(word: str, known: Collection[str]) -> str:
    """Return a suggestion for an unknown word."""
    from difflib import get_close_matches

    near = get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}."


class Field:
    """A value of a definition, with its file and path for messages."""

    __slots__ = ("path", "value", "where")

    def __init__(self, where: str, path: str, value: object) -> None:
        self.where, self.path, self.value = where, path, value

    def invalid(self, expected: str) -> InvalidSweep:
        """Return the error for an unexpected value."""
        return self.error(f"is {seen(self.value)}; {expected} was expected")

    def error(self, why: str) -> InvalidSweep:
        """Return an error about the value."""
        return InvalidSweep(f"{self.where}: {self.path} {why}.")

    def table(self, expected: str = "a table of keys", *, is_root: bool = False) -> Table:
        """Return a value that must be a dict with texts as keys."""
        if not isinstance(self.value, dict):
            raise self.invalid(expected)
        for key in self.value:
            if not isinstance(key, str):
                raise self.error(f"has the key {seen(key)}; a text was expected")
        return Table(self.where, "" if is_root else self.path, self.value)

    def choice(self, choices: Collection[str]) -> str:
        """Return a value that must be one of a few texts."""
        if not isinstance(self.value, str) or self.value not in choices:
            raise self.invalid(f"one of {', '.join(choices)}")
        return self.value

    def number(self, expected: str = "a number") -> int | float:
        """Return a value that must be a finite number."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.invalid(expected)
        if not math.isfinite(value):
            raise self.invalid(expected)
        return value

    def integer(self, least: int) -> int:
        """Return a value that must be an integer of at least `least`."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.invalid(f"a whole number from {least} on")
        return value

    def text(self, expected: str = "a text") -> str:
        """Return a value that must be a non-empty text."""
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.invalid(expected)
        return sound(self.where, self.path, self.value)


class Table:
    """A dict of a definition, with its file and path for messages."""

    __slots__ = ("path", "values", "where")

    def __init__(self, where: str, path: str, values: dict[str, Any]) -> None:
        self.where, self.path, self.values = where, path, values

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def field(self, key: str, default: object = None) -> Field:
        """Return a value, or the default if it is missing."""
        path = f"{self.path}.{key}" if self.path else key
        return Field(self.where, path, self.values.get(key, default))

    def error(self, why: str) -> InvalidSweep:
        """Return an error about the table."""
        return Field(self.where, self.path, self.values).error(why)

    def reject_unknown(self, known: Collection[str]) -> None:
        """Reject the first unknown key, with a suggestion."""
        for key in self.values:
            if key not in known:
                path = self.field(key).path
                raise InvalidSweep(f"{self.where}: {path} is not known; {guess(key, known)}")


def sound(where: str, path: str, value: str) -> str:
    """Return a text that is valid in a command and in JSON."""
    if "\0" in value:
        raise InvalidSweep(f"{where}: {path} has a zero byte in it, which no command can take.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidSweep(f"{where}: {path} is not UTF-8: {seen(value)}.") from None
    return value


class Values:
    """Checks and counts listed values: YAML aliases make long lists from short files."""

    def __init__(self, where: str) -> None:
        self.where, self.count = where, 0

    def one(self, path: str, value: object, depth: int = 0) -> Any:
        """Return a value that JSON can represent."""
        self.count += 1
        if self.count > MAX_VALUES:
            raise InvalidSweep(
                f"{self.where}: {path} is one value too many; {MAX_VALUES:,} are allowed."
            )
        if depth > MAX_DEPTH:
            raise InvalidSweep(f"{self.where}: {path} is nested more than {MAX_DEPTH} deep.")
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            return Field(self.where, path, value).number("a finite number")
        if isinstance(value, str):
            if len(value) > LONGEST_TEXT:
                raise InvalidSweep(
                    f"{self.where}: {path} has {len(value):,} characters; "
                    f"{LONGEST_TEXT:,} are allowed."
                )
            return sound(self.where, path, value)
        if isinstance(value, list | tuple):
            return [self.one(f"{path}[{i}]", item, depth + 1) for i, item in enumerate(value)]
        if isinstance(value, dict):
            pairs = Field(self.where, path, value).table().values
            return {key: self.one(f"{path}.{key}", item, depth + 1) for key, item in pairs.items()}
        expected = "a text, a number, true, false, null or a list"
        raise Field(self.where, path, value).invalid(expected)
