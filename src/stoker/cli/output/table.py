"""Tables with aligned columns, fitted to the width of a terminal; not cut in a pipe."""

from __future__ import annotations

import os

from stoker.cli.output import clean, colour, is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

GAP = "  "


MIN_CUT_WIDTH = 8
"""Minimum width of a column that may be cut, unless all columns have to be cut."""
MIN_READABLE_WIDTH = 10
"""Columns are left out before a column gets narrower than this."""
MAX_WHOLE_WIDTH = 24
"""Width up to which the cells of columns with `whole` are not cut."""


class Column:
    """A heading, its alignment, and how the column adapts to a narrow terminal.

    `cut`: its cells may be shortened. `drop`: it may be left out, the highest number first.
    `whole`: columns with this `drop` or a higher one are left out before its cells are shortened.
    `spare`: shown only if this many cells are left beside all other columns, never in a pipe.
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
        """Store the colours separately, so that they do not count as width."""
        cell = super().__new__(cls, clean(text))
        cell.colours = colours
        return cell


def render(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    header: bool = True,
    width: int | None = None,
    coloured: bool | None = None,
) -> list[str]:
    """Return the lines of a table, at most `width` wide; None for no limit."""
    texts = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    titles = [[Cell(column.title, "bold") for column in columns]] if header else []
    widths = [
        max((display_width(row[i]) for row in titles + texts), default=0)
        for i in range(len(columns))
    ]
    shown = _visible_columns(columns, widths, width)
    columns, widths = [columns[i] for i in shown], [widths[i] for i in shown]
    if width is not None:
        _shrink(columns, widths, width)
    if coloured is None:
        coloured = colour.is_enabled()
    cells = ([row[i] for i in shown] for row in titles + texts)
    return [_line(columns, widths, row, coloured) for row in cells]


def write(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, header: bool = True) -> None:
    """Print a table, fitted and coloured if stdout is a terminal."""
    lines = render(columns, rows, header=header, width=terminal_width())
    if lines:
        print("\n".join(lines))


def insert_column(
    columns: list[Column], rows: list[list[str]], at: int, column: Column, cells: Iterable[str]
) -> None:
    """Insert a column before the one at an index."""
    columns.insert(at, column)
    for row, cell in zip(rows, cells, strict=True):
        row.insert(at, cell)


def write_csv(names: Sequence[str], rows: Iterable[Iterable[object]], *, header: bool) -> None:
    """Print rows as CSV."""
    import csv
    import sys

    writer = csv.writer(sys.stdout, lineterminator="\n")
    if header and names:
        writer.writerow(names)
    writer.writerows(rows)


def terminal_width() -> int | None:
    """Return the width of the terminal on stdout, None if it is not a terminal."""
    if not is_terminal(1):
        return None
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80


def display_width(text: str) -> int:
    """Return the width of a text in cells of a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text
    )


def shorten(text: str, width: int) -> str:
    """Cut a text to `width` cells, with an ellipsis."""
    if display_width(text) <= width:
        return text
    if width <= 1:
        return "…"[:width]
    kept = text
    while display_width(kept) > width - 1:
        kept = kept[: -max(1, (display_width(kept) - width + 1) // 2)]
    return kept + "…"


def _total_width(widths: Iterable[int]) -> int:
    """Return the width of a line of columns."""
    widths = list(widths)
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _visible_columns(columns: Sequence[Column], widths: list[int], width: int | None) -> list[int]:
    """Return the indexes of the columns that are shown."""
    shown = [i for i, column in enumerate(columns) if not column.spare]
    if width is None:
        return shown

    def min_width(i: int, drop: int) -> int:
        if not columns[i].cut:
            return widths[i]
        is_uncut = 0 < columns[i].whole <= drop
        return min(widths[i], MAX_WHOLE_WIDTH if is_uncut else MIN_READABLE_WIDTH)

    while True:
        candidate = max(shown, key=lambda i: columns[i].drop)
        drop = columns[candidate].drop
        if _total_width(min_width(i, drop) for i in shown) <= width:
            break
        if not drop:
            return shown
        shown.remove(candidate)
    room = width - _total_width(widths[i] for i in shown) - len(GAP)
    spare = [i for i, column in enumerate(columns) if column.spare and column.spare <= room]
    return sorted([*shown, *spare[:1]])


def _shrink(columns: Sequence[Column], widths: list[int], width: int) -> None:
    """Reduce the widest columns until all fit; as a last resort, any column."""
    preferred = [
        (MAX_WHOLE_WIDTH if c.whole else MIN_CUT_WIDTH) if c.cut else None for c in columns
    ]
    narrow = [MIN_CUT_WIDTH if c.cut else None for c in columns]
    for floors in (preferred, narrow, [1] * len(columns)):
        over = _total_width(widths) - width
        while over > 0:
            cuttable = [i for i, floor in enumerate(floors) if floor and widths[i] > floor]
            if not cuttable:
                break
            widest = max(cuttable, key=lambda i: widths[i])
            taken = min(over, max(1, (widths[widest] - (floors[widest] or 0)) // 2))
            widths[widest] -= taken
            over -= taken


def _line(columns: Sequence[Column], widths: list[int], row: Sequence[Cell], coloured: bool) -> str:
    parts = []
    last = len(columns) - 1
    for i, (column, cell) in enumerate(zip(columns, row, strict=True)):
        text = shorten(cell, widths[i]) if display_width(cell) > widths[i] else str(cell)
        space = " " * (widths[i] - display_width(text))
        if coloured:
            text = colour.coded(text, *cell.colours)
        if column.right:
            text = space + text
        elif i < last:
            text += space
        parts.append(text)
    return GAP.join(parts).rstrip()
