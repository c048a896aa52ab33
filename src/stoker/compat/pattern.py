"""Reads a command with {parameter} in it, and fills it in.

What str.format does to whole values is the same here: {a}, {a:>5}, {a!r}, {{ and }}. What
reaches into a value ({a.b}, {a[0]}) is not there: a name is only ever a name.
"""

from __future__ import annotations

from stoker.client.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

DOUBLE = "Double the braces that belong to the command:"
BLANKS = " \t\n\r\v\f"
CONVERSIONS = ("r", "s", "a")
WIDEST = 4
"""Digits that a width may have: {a:>9999999999} would fill the memory with blanks."""


class Field:
    """One {name!conversion:spec} of a pattern."""

    __slots__ = ("conversion", "name", "spec", "typed")

    def __init__(self, typed: str, names: Sequence[str]) -> None:
        self.typed = typed
        head, _, self.spec = typed[1:-1].partition(":")
        self.name, _, self.conversion = head.partition("!")
        if self.name not in names:
            raise UsageError(_no_parameter(typed, self.name, names))
        if self.conversion not in CONVERSIONS and "!" in head:
            raise UsageError(f"{typed}: a conversion is !r, !s or !a. {DOUBLE} {doubled(typed)}")
        self._check_spec()

    def shown(self, value: object) -> str:
        """Return what stands in place of the field for a value of its parameter."""
        return self.template("0").format(value)

    def template(self, key: object) -> str:
        """Return the field as str.format reads it, with another name."""
        conversion = f"!{self.conversion}" if self.conversion else ""
        spec = f":{self.spec}" if self.spec else ""
        return f"{{{key}{conversion}{spec}}}"

    def _check_spec(self) -> None:
        digits = "".join(char if char.isdecimal() else " " for char in self.spec).split()
        try:
            if "{" in self.spec or any(len(number) > WIDEST for number in digits):
                raise ValueError
            format("", self.spec)
        except ValueError:
            raise UsageError(
                f"{self.typed} has a format that does not apply to text, and all values are text; "
                f"{{{self.name}:>8}} works. {DOUBLE} {doubled(self.typed)}"
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
        # str.format is far faster than joining pieces here. The numbers it gets are ours.
        self.fill = "".join(
            piece.template(names.index(piece.name)) if isinstance(piece, Field) else doubled(piece)
            for piece in self.pieces
        ).format

    def endings(self, values: Mapping[str, Sequence[object]]) -> Iterator[str]:
        """Yield every text that can stand at the end of a filled-in pattern."""
        for piece in reversed(self.pieces):
            texts = _shown(piece, values)
            yield from filter(None, texts)
            if all(texts):
                return

    def beginnings(self, values: Mapping[str, Sequence[object]]) -> Iterator[str]:
        """Yield every text that can come first behind blanks; "" if all may be blank."""
        for piece in self.pieces:
            texts = [text.lstrip(BLANKS) for text in _shown(piece, values)]
            yield from filter(None, texts)
            if all(texts):
                return
        yield ""


def _shown(piece: str | Field, values: Mapping[str, Sequence[object]]) -> list[str]:
    """Return all that a piece of a pattern can become."""
    if isinstance(piece, Field):
        return [piece.shown(value) for value in values[piece.name]]
    return [piece]


def doubled(text: str) -> str:
    """Return a text as a pattern has to spell it."""
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
    """Return where the field that begins at `start` ends; braces inside it come in pairs."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth <= 0:
            break
    if depth == 0:
        return place + 1
    brace, other = ("{", "}") if depth > 0 else ("}", "{")
    raise UsageError(
        f"The pattern has a {brace} without its {other}: {_cut(text[start:])!r}. "
        f"Double a brace that belongs to the command: {brace * 2}"
    )


def _no_parameter(typed: str, name: str, names: Sequence[str]) -> str:
    inside = name.partition(".")[0].partition("[")[0]
    if inside != name and inside in names:
        return (
            f"{typed} selects a part of a value; use the whole value: {{{inside}}}. "
            f"{DOUBLE} {doubled(typed)}"
        )
    if name.replace("-", "_").isidentifier():
        return (
            f"The pattern has {typed}, but there is no parameter {name}. Add -p {name} VALUE ..., "
            f"or double the braces if they belong to the command: {doubled(typed)}"
        )
    return (
        f"The pattern has {_cut(typed)}, which is not a parameter. {DOUBLE} {_cut(doubled(typed))}"
    )


def _cut(text: str, width: int = 40) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
