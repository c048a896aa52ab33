"""Writes aligned columns: cut to the width of a terminal, never when piped."""

from __future__ import annotations

import os

from stoker.cli.output import clean, colour, is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

GAP = "  "


LEAST = 8
"""Columns that may be cut keep this many cells, unless nothing else is left to give."""
READABLE = 10
"""Before they get narrower than this, other columns are left out."""
WHOLE = 24
"""Cells up to this width stay whole in columns with `whole`."""


class Column:
    """A heading, its alignment, and what happens to the column on a narrow terminal.

    `cut`: its cells may be shortened. `drop`: it may be left out, the highest number first.
    `whole`: columns with this `drop` or a higher one are left out before its cells are shortened.
    `spare`: it is shown only if this many cells are left beside all others, never in a pipe.
    """

    __slots__ = ("cut", "drop", "right", "spare", "title", "whole")

    def __init__(
        self, title: str, *, right: bool = False, cut: bool = False, drop: int = 0, spare: int = 0,
        whole: int = 0,
    ) -> None:  # fmt: skip
        self.title = title
        self.right = right
        self.cut = cut or spare > 0 or whole > 0
        self.drop = drop
        self.spare = spare
        self.whole = whole


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
    shown = _shown(columns, widths, width)
    columns, widths = [columns[i] for i in shown], [widths[i] for i in shown]
    if width is not None:
        _shrink(columns, widths, width)
    titles = [[Cell(column.title, "bold") for column in columns]] if header else []
    cells = [[row[i] for i in shown] for row in texts]
    return [_line(columns, widths, row, coloured) for row in titles + cells]


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


def _total(widths: Iterable[int]) -> int:
    """Return how many cells a line of columns takes."""
    widths = list(widths)
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _shown(columns: Sequence[Column], widths: list[int], width: int | None) -> list[int]:
    """Return which columns are shown, by their places."""
    shown = [i for i, column in enumerate(columns) if not column.spare]
    if width is None:
        return shown

    def least(i: int, drop: int) -> int:
        whole = 0 < columns[i].whole <= drop
        return min(widths[i], WHOLE if whole else READABLE) if columns[i].cut else widths[i]

    while True:
        place = max(shown, key=lambda i: columns[i].drop)
        drop = columns[place].drop
        if _total(least(i, drop) for i in shown) <= width:
            break
        if not drop:
            return shown
        shown.remove(place)
    room = width - _total(widths[i] for i in shown) - len(GAP)
    spare = [i for i, column in enumerate(columns) if column.spare and column.spare <= room]
    return sorted([*shown, *spare[:1]])


def _shrink(columns: Sequence[Column], widths: list[int], width: int) -> None:
    """Cut the widest columns until all fit; in the end, any column."""
    whole = [(WHOLE if c.whole else LEAST) if c.cut else None for c in columns]
    narrow = [LEAST if c.cut else None for c in columns]
    for floors in (whole, narrow, [1] * len(columns)):
        over = _total(widths) - width
        while over > 0:
            able = [i for i, floor in enumerate(floors) if floor and widths[i] > floor]
            if not able:
                break
            widest = max(able, key=lambda i: widths[i])
            taken = min(over, max(1, (widths[widest] - (floors[widest] or 0)) // 2))
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
