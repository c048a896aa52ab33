"""Writes aligned columns: cut to the width of a terminal, never when piped."""

from __future__ import annotations

import os

from stoker.cli import colour
from stoker.cli.output import clean, is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

GAP = "  "


class Column:
    """A heading, whether numbers stand to the right, and whether it may be cut to fit."""

    __slots__ = ("cut", "right", "title")

    def __init__(self, title: str, *, right: bool = False, cut: bool = False) -> None:
        self.title = title
        self.right = right
        self.cut = cut


class Cell(str):
    """A text with a colour."""

    __slots__ = ("colours",)
    colours: tuple[str, ...]

    def __new__(cls, text: object, *colours: str) -> Cell:  # noqa: PYI034 - typing.Self costs an import
        """Keep the colours beside the text, so that its width stays right."""
        cell = super().__new__(cls, clean(text))
        cell.colours = colours
        return cell


def render(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    header: bool = True,
    width: int | None = None,
    coloured: bool = False,
) -> list[str]:
    """Return the lines of a table; `width` limits them, None leaves them as long as they are."""
    texts = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    widths = [
        max([wide(column.title) if header else 0, *(wide(row[i]) for row in texts)])
        for i, column in enumerate(columns)
    ]
    if width is not None:
        _shrink(columns, widths, width)
    lines = []
    if header:
        titles = [Cell(column.title, "bold") for column in columns]
        lines.append(_line(columns, widths, titles, coloured))
    lines += [_line(columns, widths, row, coloured) for row in texts]
    return lines


def write(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, header: bool = True) -> None:
    """Print a table as suits stdout."""
    lines = render(columns, rows, header=header, width=terminal_width(), coloured=colour.wanted())
    if lines:
        print("\n".join(lines))


def terminal_width() -> int | None:
    """Return how many columns the terminal on stdout has, None when it is no terminal."""
    if not is_terminal(1):
        return None
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80


def wide(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text
    )


def shorten(text: str, width: int) -> str:
    """Cut a text to `width` cells, with an ellipsis where something is missing."""
    if wide(text) <= width:
        return text
    if width <= 1:
        return "…"[:width]
    kept = text
    while wide(kept) > width - 1:
        kept = kept[: -max(1, (wide(kept) - width + 1) // 2)]
    return kept + "…"


def _shrink(columns: Sequence[Column], widths: list[int], width: int) -> None:
    over = sum(widths) + len(GAP) * (len(widths) - 1) - width
    while over > 0:
        able = [i for i, column in enumerate(columns) if column.cut and widths[i] > 8]
        if not able:
            return
        widest = max(able, key=lambda i: widths[i])
        taken = min(over, max(1, (widths[widest] - 8) // 2))
        widths[widest] -= taken
        over -= taken


def _line(columns: Sequence[Column], widths: list[int], row: Sequence[Cell], coloured: bool) -> str:
    parts = []
    last = len(columns) - 1
    for i, (column, cell) in enumerate(zip(columns, row, strict=True)):
        text = shorten(cell, widths[i]) if wide(cell) > widths[i] else str(cell)
        space = " " * (widths[i] - wide(text))
        if coloured:
            text = colour.paint(text, *cell.colours)
        if column.right:
            text = space + text
        elif i < last:
            text += space
        parts.append(text)
    return GAP.join(parts).rstrip()
