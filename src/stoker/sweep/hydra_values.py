"""Parse and write Hydra's values: `0.1`, `'a, b'`, `[1,2]`, `{a:1}`, `range(0,5)`.

More texts are accepted without quotes than by Hydra; what is written, Hydra can parse.
"""

from __future__ import annotations

import re

from stoker.sweep.values import format_value, parse_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ESCAPED = "\\()[]{}:=, \t"
"""Characters that Hydra reads literally after a backslash."""
BLANK = " \t"
MAX_DEPTH = 20
LISTING = ("choice", "shuffle", "str", "tag")
"""Functions with values of the parameter as arguments; others take numbers."""
_IDENTIFIER = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
_NAMED = re.compile(r"([A-Za-z_][\w-]*)[ \t]*=[ \t]*", re.ASCII)
_BARE = re.compile(r"[\w/.+%@*?|:-]+", re.ASCII)
_ENDLESS = re.compile(r"[+-]?(?:inf|nan)", re.IGNORECASE)


class InvalidValue(ValueError):
    """A value that cannot be parsed; the message is the end of a sentence."""


class Call:
    """A function call with its arguments."""

    __slots__ = ("args", "name", "named")

    def __init__(self, name: str) -> None:
        self.name = name
        self.args: list[Any] = []
        self.named: dict[str, Any] = {}


def hydras(text: str) -> Any:
    """Return Hydra's meaning of a bare text: null is None, and None is a text."""
    return text if text == "None" else parse_number(text)


def read(text: str, bare: Callable[[str], Any] = hydras) -> list[Any]:
    """Return the elements of a value; `bare` converts texts without quotes."""
    return _Reader(text, bare).all()


class _Reader:
    def __init__(self, text: str, meaning: Callable[[str], Any]) -> None:
        self.text, self.at, self.depth = text, 0, 0
        self.meaning = meaning

    def all(self) -> list[Any]:
        elements = [self.element(",")]
        while self.peek():
            self.at += 1  # a comma: only that ends an element here
            elements.append(self.element(","))
        return elements

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def element(self, ends: str) -> Any:
        """Parse one element, up to one of the characters that end it."""
        self.blanks()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InvalidValue(f"it is nested more than {MAX_DEPTH} deep")
        opening = self.peek()
        if opening and opening in "'\"":
            element_value: Any = self.quoted(opening)
        elif opening == "[":
            element_value = self.listed("]")
        elif opening == "{":
            element_value = self.pairs()
        else:
            element_value = self.bare(ends)
        self.depth -= 1
        self.blanks()
        if self.peek() and self.peek() not in ends:
            remaining = self.text[self.at :]
            raise InvalidValue(
                f"{remaining!r} found where a comma was expected; put such a text in quotes"
            )
        return element_value

    def blanks(self) -> None:
        while self.peek() and self.peek() in BLANK:
            self.at += 1

    def quoted(self, quote: str) -> str:
        """Parse a text in quotes; backslashes escape only quotes."""
        unquoted = ""
        index = self.at + 1
        while index < len(self.text):
            end = index
            while self.text[end : end + 1] == "\\":
                end += 1
            slashes = end - index
            if self.text[end : end + 1] != quote:
                unquoted += self.text[index : end + 1]
                index = end + 1
                continue
            unquoted += "\\" * (slashes // 2)
            if slashes % 2 == 0:
                self.at = end + 1
                return unquoted
            unquoted += quote
            index = end + 1
        raise InvalidValue(f"the quote {quote} is never closed")

    def listed(self, closing: str) -> list[Any]:
        self.at += 1
        elements: list[Any] = []
        self.blanks()
        while self.open(closing):
            elements.append(self.value(closing))
            if self.peek() == ",":
                self.at += 1
        self.at += 1
        return elements

    def open(self, closing: str) -> bool:
        """Return True if there is more before the closing bracket, which is required."""
        if not self.peek():
            raise InvalidValue(f"a {closing} is missing")
        return self.peek() != closing

    def value(self, closing: str) -> Any:
        element = self.element("," + closing)
        if isinstance(element, Call):
            raise InvalidValue(f"{element.name}() cannot be used inside a value")
        return element

    def pairs(self) -> dict[str, Any]:
        self.at += 1
        mapping: dict[str, Any] = {}
        self.blanks()
        while self.open("}"):
            key, _ = self.gather(":")
            if self.peek() != ":" or not key:
                raise InvalidValue("a table in braces is written {key:value}")
            self.at += 1
            mapping[key] = self.value("}")
            if self.peek() == ",":
                self.at += 1
                self.blanks()
        self.at += 1
        return mapping

    def bare(self, ends: str) -> Any:
        """Parse a text without quotes, a number, or a function."""
        text, literal = self.gather(ends)
        if self.peek() == "(" and not literal and _IDENTIFIER.fullmatch(text):
            return self.call(text)
        if self.peek() and self.peek() not in ends:
            raise InvalidValue(f"{self.peek()} must be quoted or escaped with a backslash")
        if not text and not literal:
            raise InvalidValue("a value is missing")
        if _ENDLESS.fullmatch(text):
            raise InvalidValue(f"{text} is not a value to sweep over")
        return text if literal else self.meaning(text)

    def gather(self, ends: str) -> tuple[str, bool]:
        """Return the text up to one of `ends` or a bracket, and whether it had an escape."""
        gathered, literal, kept = "", False, 0
        while self.peek() and self.peek() not in ends and self.peek() not in "()[]{}":
            char = self.peek()
            following = self.text[self.at + 1 : self.at + 2]
            if char == "\\" and following and following in ESCAPED:
                gathered, literal = gathered + following, True
                kept = len(gathered)
                self.at += 2
            elif char == "$" and following == "{":
                gathered += self.interpolation()
            else:
                gathered += char
                self.at += 1
        # An escaped blank at the end is kept.
        return gathered[:kept] + gathered[kept:].rstrip(BLANK), literal

    def interpolation(self) -> str:
        start, depth = self.at, 0
        for index in range(self.at + 1, len(self.text)):
            depth += {"{": 1, "}": -1}.get(self.text[index], 0)
            if depth == 0:
                self.at = index + 1
                return self.text[start : self.at]
        raise InvalidValue("a } is missing")

    def call(self, name: str) -> Call:
        call, outside = Call(name), self.meaning
        self.meaning = outside if name in LISTING else hydras
        self.at += 1
        self.blanks()
        while self.open(")"):
            argument = _NAMED.match(self.text, self.at)
            if argument:
                self.at = argument.end()
                call.named[argument[1]] = self.element(",)")
            elif call.named:
                raise InvalidValue("a positional argument follows a named one")
            else:
                call.args.append(self.element(",)"))
            if self.peek() == ",":
                self.at += 1
                self.blanks()
        self.at += 1
        self.meaning = outside
        return call


def written(value: Any) -> str:
    """Return a value as text that Hydra parses to the same value."""
    if value is None:
        return "null"
    if isinstance(value, str):
        plain = _BARE.fullmatch(value) and isinstance(hydras(value), str)
        return value if plain and not _ENDLESS.fullmatch(value) else _in_quotes(value)
    if isinstance(value, list):
        return f"[{','.join(written(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_key(k)}:{written(v)}' for k, v in value.items())}}}"
    return format_value(value)


def _in_quotes(text: str) -> str:
    # Backslashes are doubled only before a quote, including the closing one.
    inner = re.sub(r"(\\*)'", r"\1\1\\'", text)
    inner = re.sub(r"(\\+)\Z", r"\1\1", inner)
    return f"'{inner}'"


def _key(text: str) -> str:
    return "".join(f"\\{char}" if char in ESCAPED else char for char in text)
