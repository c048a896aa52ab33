"""Strict CSV tables; errors are reported with file and line."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from stoker.simulate.traces.errors import TraceError, invalid_line
from stoker.simulate.traces.field_parsers import BadCell, parse_cell
from stoker.simulate.traces.files import open_text

T = TypeVar("T")


class Row:
    """A row of a table, with its place for error messages."""

    __slots__ = ("_cells", "_path", "line")

    def __init__(self, path: Path, line: int, cells: dict[str, str | None]) -> None:
        self._path, self.line, self._cells = path, line, cells

    def text(self, column: str) -> str:
        """Return a cell; empty if the row or the table has none."""
        return self._cells.get(column) or ""

    def has_any(self, columns: Iterable[str]) -> bool:
        """Return True if the table has one of these columns."""
        return any(column in self._cells for column in columns)

    def parse(self, column: str, parse: Callable[[str], T]) -> T:
        """Parse a cell; raise TraceError."""
        try:
            return parse_cell(column, self.text(column), parse)
        except BadCell as error:
            raise self.error(error) from None

    def error(self, why: object) -> TraceError:
        """Return the error for this row."""
        return invalid_line(self._path, self.line, why)


def named_rows(path: Path, columns: tuple[str, ...]) -> Iterator[Row]:
    """Yield the rows of a table that must have these columns; raise TraceError."""
    with open_text(path) as file:
        table, ended = csv.DictReader(file, strict=True), 0
        try:
            missing = [column for column in columns if column not in (table.fieldnames or ())]
            if missing:
                raise TraceError(
                    f"{path}, line 1: expected the columns {', '.join(columns)}; add {missing[0]}."
                )
            ended = table.line_num
            for row in table:
                ended = table.line_num
                yield Row(path, ended, row)
        except csv.Error as error:
            raise unreadable(path, ended + 1, table.line_num, error) from None


def unreadable(path: Path, first: int, last: int, error: csv.Error) -> TraceError:
    """Return the TraceError for a csv.Error in a row that spans these lines."""
    said, longest = str(error), f"{csv.field_size_limit():,} characters"
    if "end of data" in said:
        what = "the quote that opens a cell is never closed; close or remove it"
    elif "field limit" in said and last > first:
        what = f"the quote that opens a cell is not closed within {longest}; close or remove it"
    elif "field limit" in said:
        what = f"a cell has more than {longest}; shorten it or delete the line"
    elif "expected after" in said:
        what = (
            "a cell has text after its closing quote; close each quote, and double quotes within "
            "a cell"
        )
    else:
        what = f"{said}; correct or delete the line"
    return TraceError(f"{path}, line {first}: {what}.")
