"""Placeholders of parameters in a command: `${args}`, `${param:lr}`, `{lr:.3f}`."""

from __future__ import annotations

import re

from stoker.sweep.validation import InvalidSweep
from stoker.sweep.values import format_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

LISTS = ("args", "args_no_boolean_flags", "args_no_hyphens", "args_no_equals")
"""Macros that expand to several words."""
WHOLE = (*LISTS, "args_json", "args_json_file")
"""Macros for all parameters."""
MACROS = ("env", "interpreter", "program", *WHOLE, "no_args", "envvar", "param")
KNOWN = (
    "${env}, ${interpreter}, ${program}, ${args}, ${args_no_boolean_flags}, ${args_no_hyphens}, "
    "${args_no_equals}, ${args_json}, ${args_json_file}, ${no_args}, ${envvar:NAME} and "
    "${param:NAME}"
)
LATER_FIELDS = ("gpu",)
"""Fields that are not parameters: they are filled in when the trial starts."""
MAX_WIDTH_DIGITS = 4
"""Maximum digits of a width: {a:>9999999999} would exhaust the memory."""
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
OVERRIDE = re.compile(
    r"(?P<sign>\+\+|\+|~|)"
    r"(?P<key>[A-Za-z_$][\w$-]*(?:[./][\w$-]+)*(?:@[\w$.-]*)?)=(?P<value>.*)",
    re.ASCII | re.DOTALL,
)
"""One of Hydra's overrides: key=value, optionally after +, ++ or ~."""
_WORD = re.compile(
    r"(?P<literal>\$\$\{)|\$\{(?P<macro>[^{}]*)\}|\{\{(?P<twice>[^{}]*)\}\}|\{(?P<field>[^{}]*)\}"
)
_LINE = re.compile(r"\$\{(?P<macro>[^{}]*)\}|(?P<twice>\{\{|\}\})|\{(?P<field>[^{}]*)\}|[{}]")
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_LINE_MACROS = (*WHOLE, "param", "envvar", "no_args")
"""In a line for a shell, all other ${...} belong to the shell."""


class Macro:
    """One ${name} or ${name:argument}."""

    __slots__ = ("argument", "name")

    def __init__(self, name: str, argument: str) -> None:
        self.name, self.argument = name, argument


class Field:
    """One {name}, {name!r} or {name:spec}."""

    __slots__ = ("conversion", "name", "source", "spec")

    def __init__(self, inner: str) -> None:
        self.source = f"{{{inner}}}"
        head, _, self.spec = inner.partition(":")
        self.name, _, self.conversion = head.partition("!")

    def replace_with(self, value: object) -> str:
        """Return the text that replaces the field."""
        text = {"r": repr, "a": ascii}.get(self.conversion, format_value)(value)
        if not self.spec:
            return text
        return format(text if self.conversion or isinstance(value, list) else value, self.spec)

    def check(self, where: str, values: Collection[object]) -> None:
        """Reject a format that some of these values do not support."""
        if self.conversion not in {"", "r", "s", "a"}:
            raise InvalidSweep(f"{where}: {self.source} has a conversion that is not !r, !s or !a.")
        digits = max((len(number) for number in re.findall(r"\d+", self.spec)), default=0)
        if digits > MAX_WIDTH_DIGITS:
            raise InvalidSweep(f"{where}: {self.source} is too wide.")
        for value in values:
            try:
                self.replace_with(value)
            except (ValueError, TypeError, OverflowError):
                raise InvalidSweep(
                    f"{where}: {self.source} has a format that {value!r}, a value of {self.name}, "
                    "cannot take."
                ) from None


Piece = str | Macro | Field


def word_pieces(word: str, names: Collection[str], where: str) -> Iterator[Piece]:
    """Split one word of a command; braces without a parameter's name stay."""
    # In an override, {lr:1} is a dict of Hydra.
    bare = OVERRIDE.match(word) is not None
    at = 0
    for match in _WORD.finditer(word):
        piece: Piece = match[0]
        field, twice = match["field"], match["twice"]
        if match["literal"]:
            piece = "${"
        elif match["macro"] is not None:
            piece = _macro(match["macro"], names, where)
        elif twice is not None and Field(twice).name in names:
            piece = f"{{{twice}}}"
        elif field is not None and (field if bare else Field(field).name) in names:
            piece = Field(field)
        yield word[at : match.start()]
        yield piece
        at = match.end()
    yield word[at:]


def unknown_fields(word: str, names: Collection[str]) -> list[str]:
    """Return what looks like a field in a word, but is not a parameter: `{lrr}`."""
    return [
        match["field"]
        for match in _WORD.finditer(word)
        if match["field"] is not None
        and match["field"].isidentifier()
        and match["field"] not in (*names, *LATER_FIELDS)
    ]


def line_pieces(line: str, names: Collection[str], where: str) -> Iterator[Piece]:
    """Split a line for a shell; braces of the shell are doubled."""
    at = 0
    for match in _LINE.finditer(line):
        piece: Piece = match[0]
        if match["macro"] is not None:
            if match["macro"].partition(":")[0] in _LINE_MACROS:
                piece = _macro(match["macro"], names, where)
        elif match["twice"]:
            piece = match[0][0]
        elif match["field"] is None:
            raise InvalidSweep(
                f"{where}: line has an unpaired {match[0]}; "
                f"write {match[0] * 2} for a brace of the shell"
            )
        elif match["field"] not in LATER_FIELDS or match["field"] in names:
            piece = _named(match["field"], names, where)
        yield line[at : match.start()]
        yield piece
        at = match.end()
    yield line[at:]


def _named(inner: str, names: Collection[str], where: str) -> Field:
    field = Field(inner)
    if field.name not in names:
        raise InvalidSweep(
            f"{where}: line has {field.source}, which is not a parameter; {_listed(names)}. "
            f"Write {{{field.source}}} for braces of the shell"
        )
    return field


def _macro(inner: str, names: Collection[str], where: str) -> Macro:
    name, colon, argument = inner.partition(":")
    takes = name in {"envvar", "param"}
    if name not in MACROS or bool(colon) != takes:
        raise InvalidSweep(
            f"{where}: command has ${{{inner}}}; known are {KNOWN}. "
            f"Write $${{{inner}}} for a literal ${{{inner}}}."
        )
    if name == "program":
        raise InvalidSweep(f"{where}: command has ${{program}}, but the definition has no program.")
    if name == "param" and argument not in names:
        raise InvalidSweep(f"{where}: ${{{inner}}} is not a parameter; {_listed(names)}.")
    if name == "envvar" and not _VARIABLE.fullmatch(argument):
        raise InvalidSweep(f"{where}: ${{{inner}}} is not the name of a variable.")
    return Macro(name, argument)


def _listed(names: Collection[str]) -> str:
    return f"parameters: {', '.join(names) or 'none'}"
