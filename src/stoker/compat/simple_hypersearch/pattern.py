"""Pattern: a command with {parameter} fields.

Formats of whole values work as in str.format: {a}, {a:>5}, {a!r}, {{ and }}. Attributes and indexes
({a.b}, {a[0]}) are not supported: a name is only a name.
"""

from __future__ import annotations

from stoker.client.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

DOUBLE_HINT = "Double the braces that belong to the command:"
BLANKS = " \t\n\r\v\f"
CONVERSIONS = ("r", "s", "a")
MAX_WIDTH_DIGITS = 4
"""Maximum digits of a width: {a:>9999999999} would exhaust the memory."""


class Field:
    """One {name!conversion:spec} of a pattern."""

    __slots__ = ("conversion", "name", "source", "spec")

    def __init__(self, source: str, names: Sequence[str]) -> None:
        self.source = source
        head, _, self.spec = source[1:-1].partition(":")
        self.name, _, self.conversion = head.partition("!")
        if self.name not in names:
            raise UsageError(_no_parameter(source, self.name, names))
        if self.conversion not in CONVERSIONS and "!" in head:
            raise UsageError(
                f"{source}: a conversion is !r, !s or !a. {DOUBLE_HINT} {double_braces(source)}"
            )
        self._check_spec()

    def shown(self, value: object) -> str:
        """Return the text of the field for a value."""
        return self.template("0").format(value)

    def template(self, key: object) -> str:
        """Return the field for str.format with another name."""
        conversion = f"!{self.conversion}" if self.conversion else ""
        spec = f":{self.spec}" if self.spec else ""
        return f"{{{key}{conversion}{spec}}}"

    def _check_spec(self) -> None:
        digits = "".join(char if char.isdecimal() else " " for char in self.spec).split()
        try:
            if "{" in self.spec or any(len(number) > MAX_WIDTH_DIGITS for number in digits):
                raise ValueError
            format("", self.spec)
        except ValueError:
            raise UsageError(
                f"{self.source} has a format that does not apply to text, and all values are text; "
                f"{{{self.name}:>8}} works. {DOUBLE_HINT} {double_braces(self.source)}"
            ) from None


class Pattern:
    """A command with fields, checked against the names of the parameters."""

    __slots__ = ("fill", "pieces", "used")

    fill: Callable[..., str]
    """Returns the command for one combination: `fill(*values)`, in the order of the names."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self.pieces: list[str | Field] = [
            Field(piece, names) if is_field else piece for is_field, piece in split(text)
        ]
        self.used = {piece.name for piece in self.pieces if isinstance(piece, Field)}
        # str.format is much faster than joining pieces.
        self.fill = "".join(
            piece.template(names.index(piece.name))
            if isinstance(piece, Field)
            else double_braces(piece)
            for piece in self.pieces
        ).format

    def endings(self, values: Mapping[str, Sequence[object]]) -> Iterator[str]:
        """Yield every text that a filled pattern can end with."""
        for piece in reversed(self.pieces):
            texts = _shown(piece, values)
            yield from filter(None, texts)
            if all(texts):
                return

    def beginnings(self, values: Mapping[str, Sequence[object]]) -> Iterator[str]:
        """Yield every text that can come first after blanks; "" if all may be blank."""
        for piece in self.pieces:
            texts = [text.lstrip(BLANKS) for text in _shown(piece, values)]
            yield from filter(None, texts)
            if all(texts):
                return
        yield ""


def _shown(piece: str | Field, values: Mapping[str, Sequence[object]]) -> list[str]:
    """Return all texts of a piece of a pattern."""
    if isinstance(piece, Field):
        return [piece.shown(value) for value in values[piece.name]]
    return [piece]


def double_braces(text: str) -> str:
    """Return a text with doubled braces."""
    return text.replace("{", "{{").replace("}", "}}")


def split(text: str) -> Iterator[tuple[bool, str]]:
    """Yield literal texts, doubled braces undoubled, and fields with their braces (True)."""
    start = 0
    while start < len(text):
        char = text[start]
        if char not in "{}":
            end = min((at for at in (text.find("{", start), text.find("}", start)) if at >= 0),
                      default=len(text))  # fmt: skip
            yield False, text[start:end]
        elif text[start : start + 2] == char * 2:
            end = start + 2
            yield False, char
        else:
            end = _field_end(text, start)
            yield True, text[start:end]
        start = end


def _field_end(text: str, start: int) -> int:
    """Return the end of the field at `start`; braces inside it must be paired."""
    depth = 0
    for index in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth <= 0:
            break
    if depth == 0:
        return index + 1
    brace, other = ("{", "}") if depth > 0 else ("}", "{")
    raise UsageError(
        f"The pattern has a {brace} without its {other}: {_cut(text[start:])!r}. "
        f"Double a brace that belongs to the command: {brace * 2}"
    )


def _no_parameter(field: str, name: str, names: Sequence[str]) -> str:
    inside = name.partition(".")[0].partition("[")[0]
    if inside != name and inside in names:
        return (
            f"{field} selects a part of a value; use the whole value: {{{inside}}}. "
            f"{DOUBLE_HINT} {double_braces(field)}"
        )
    if name.replace("-", "_").isidentifier():
        return (
            f"The pattern has {field}, but there is no parameter {name}. Add -p {name} VALUE ..., "
            f"or double the braces if they belong to the command: {double_braces(field)}"
        )
    return (
        f"The pattern has {_cut(field)}, which is not a parameter. "
        f"{DOUBLE_HINT} {_cut(double_braces(field))}"
    )


def _cut(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"
