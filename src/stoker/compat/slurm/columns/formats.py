"""Output formats of Slurm's commands: `-o "%.18i %t"`, `-O name:width`."""

from __future__ import annotations

from stoker.cli import output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

LONG_WIDTH = 20
"""Width of a column of -O without a width."""


class Column:
    """A title, and the value for one row.

    Slurm cuts titles and values off at the width of the column, except for some that are aligned
    right: `whole_title` and `whole_value` name those.
    """

    __slots__ = ("title", "value", "whole_title", "whole_value")

    def __init__(
        self,
        title: str,
        value: Callable[[Any], str] | str,
        *,
        whole_title: bool = False,
        whole_value: bool = False,
    ) -> None:
        self.title = title
        self.value = value
        self.whole_title, self.whole_value = whole_title, whole_value

    def text(self, row: Any) -> str:
        """Return the value for a row; the same for all rows if it is a string."""
        return self.value if isinstance(self.value, str) else self.value(row)


class Cell:
    """A column in a format: its width (None: as long as its text), its alignment, what follows."""

    __slots__ = ("after", "column", "is_right", "width")

    def __init__(
        self, column: Column, width: int | None, is_right: bool = False, after: str = ""
    ) -> None:
        self.column, self.width, self.is_right, self.after = column, width, is_right, after

    def fit(self, text: str, is_whole: bool) -> str:
        """Return a text with the width of this cell."""
        if self.width is None:
            return text + self.after
        if not (is_whole and self.is_right):
            text = text[: self.width]
        padded = text.rjust(self.width) if self.is_right else text.ljust(self.width)
        return padded + self.after


class Format:
    """Literal text and cells; a line is their concatenation."""

    def __init__(self, parts: list[str | Cell]) -> None:
        self.parts = parts

    def header(self) -> str:
        """Return the line of titles."""
        return "".join(
            part if isinstance(part, str) else part.fit(part.column.title, part.column.whole_title)
            for part in self.parts
        )

    def row(self, row: Any) -> str:
        """Return the line of a row."""
        return "".join(
            part
            if isinstance(part, str)
            else part.fit(part.column.text(row), part.column.whole_value)
            for part in self.parts
        )


def parse_codes(text: str, columns: Mapping[str, Column], error: str) -> Format:
    """Parse `%.18i %t`: a dot aligns right, a number is the width.

    As in Slurm, an unknown code is reported with `error` and printed as it is.
    """
    head, *pieces = text.split("%")
    parts: list[str | Cell] = [head]
    for piece in pieces:
        after = piece.removeprefix(".")
        rest = after.lstrip("0123456789")
        code, digits = rest[:1], after[: len(after) - len(rest)]
        if code in columns:
            width = int(digits) if digits else None
            parts.append(Cell(columns[code], width, is_right=after != piece, after=rest[1:]))
            continue
        output.say(f"{error}{code}")
        parts.append(f"%{piece}")
    return Format(parts)


def parse_names(text: str, columns: Mapping[str, Column], error: str) -> Format:
    """Parse `JobID,Name:30,State:.12,User:|`: names of columns, each with a width or an end."""
    parts: list[str | Cell] = []
    for word in text.split(","):
        name, _, size = word.strip().partition(":")
        column = columns.get(name.lower())
        if column is None:
            output.say(f"{error}{name}")
            continue
        after = size.removeprefix(".")
        rest = after.lstrip("0123456789")
        digits = after[: len(after) - len(rest)]
        width = int(digits) if digits else None if rest else LONG_WIDTH
        parts.append(Cell(column, width, is_right=after != size, after=rest))
    return Format(parts)


def fold_numbers(numbers: list[int]) -> str:
    """Return `1-3,7` for sorted numbers."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def fold_hosts(names: list[str]) -> str:
    """Return `n[1-4],vm` for the names of nodes, as Slurm does."""
    groups: dict[tuple[str, int], list[int]] = {}
    for name in dict.fromkeys(names):
        prefix = name.rstrip("0123456789")
        digits = name[len(prefix) :]
        width = len(digits) if digits.startswith("0") else 0  # leading zeros are kept
        groups.setdefault((prefix, width if digits else -1), []).append(int(digits or 0))
    texts = []
    for (prefix, width), found in groups.items():
        numbers = sorted(found)
        if width < 0:
            texts.append(prefix)
        elif len(numbers) == 1:
            texts.append(f"{prefix}{numbers[0]:0{width}}")
        elif width:
            texts += [f"{prefix}{number:0{width}}" for number in numbers]
        else:
            texts.append(f"{prefix}[{fold_numbers(numbers)}]")
    return ",".join(texts)
