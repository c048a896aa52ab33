"""Points of a sweep from a table: CSV with a row of names, or JSON lines."""

from __future__ import annotations

from stoker.sweep.definition.parameter import name_of
from stoker.sweep.validation import MAX_DEPTH, MAX_VALUES, InvalidSweep, Values, seen
from stoker.sweep.values import canonical, parse_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


def read_csv(text: str, where: str) -> list[dict[str, Any]]:
    """Return the distinct rows of a CSV file; the first line has the names."""
    return _once(where, _csv_rows(text, where))


def read_jsonl(text: str, where: str) -> list[dict[str, Any]]:
    """Return the distinct objects of a JSON-lines file; nested objects get dotted names."""
    return _once(where, _json_rows(text, where))


def _once(where: str, rows: Iterator[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the distinct rows in order; all must have the names of the first."""
    distinct: dict[str, dict[str, Any]] = {}
    first: dict[str, Any] | None = None
    for where_row, row in rows:
        first = row if first is None else first
        if row.keys() != first.keys():
            other = min(row.keys() ^ first.keys())
            verb = "has" if other in row else "has no"
            raise InvalidSweep(f"{where_row}: this row {verb} {other}, unlike the first one.")
        distinct.setdefault(canonical(row), row)
        if len(distinct) > MAX_VALUES:
            raise InvalidSweep(
                f"{where_row}: this is one row too many; {MAX_VALUES:,} are allowed."
            )
    if not distinct:
        raise InvalidSweep(f"{where} has no rows; at least one was expected.")
    return list(distinct.values())


def _csv_rows(text: str, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    import csv
    import io

    text = text.removeprefix("\ufeff")
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=_separator(text), skipinitialspace=True,
        strict=True,
    )  # fmt: skip
    names: list[str] | None = None
    try:
        for cells in reader:
            where_row = f"{where}:{reader.line_num}"
            if not cells:
                continue
            if names is None:
                names = _header(where_row, cells)
            elif len(cells) != len(names):
                raise InvalidSweep(
                    f"{where_row}: this row has {len(cells)} cells; {len(names)} were expected, "
                    f"for {', '.join(names)}."
                )
            else:
                values = Values(where_row)
                pairs = zip(names, map(_cell, cells), strict=True)
                yield where_row, {name: values.one(name, value) for name, value in pairs}
    except csv.Error as error:
        raise InvalidSweep(f"{where}:{reader.line_num}: this is not CSV: {error}.") from None


def _separator(text: str) -> str:
    """Return the separator of the header; some spreadsheets write semicolons or tabs."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return next((char for char in ",;\t" if char in first), ",")


def _header(where: str, cells: list[str]) -> list[str]:
    names = [name_of(where, "the first line", cell.strip()) for cell in cells]
    for name in names:
        if names.count(name) > 1:
            raise InvalidSweep(f"{where}: the name {name} is given twice.")
    return names


def _cell(cell: str) -> Any:
    value = parse_value(cell.strip())
    return cell if isinstance(value, str) else value


def _json_rows(text: str, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    import json

    decoder = json.JSONDecoder(object_pairs_hook=_pairs)
    # Not splitlines: JSON may contain other line separators.
    for count, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        if not line.strip():
            continue
        where_row = f"{where}:{count}"
        try:
            decoded = decoder.decode(line)
        except RecursionError:
            raise InvalidSweep(f"{where_row}: this is nested more than {MAX_DEPTH} deep.") from None
        except ValueError as error:
            why = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise InvalidSweep(f"{where_row}: this is not JSON: {why}.") from None
        if not isinstance(decoded, dict) or not decoded:
            raise InvalidSweep(
                f"{where_row}: this is {seen(decoded)}; an object with names was expected."
            )
        row: dict[str, Any] = {}
        _flatten(where_row, decoded, "", row, Values(where_row))
        yield where_row, row


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        raise ValueError("a name is given twice")
    return unique


def _flatten(
    where: str, fields: dict[str, Any], prefix: str, into: dict[str, Any], values: Values
) -> None:
    if prefix.count(".") > MAX_DEPTH:
        raise InvalidSweep(f"{where}: this is nested more than {MAX_DEPTH} deep.")
    for key, value in fields.items():
        name = name_of(where, "this row", f"{prefix}{key}")
        if isinstance(value, dict) and value:
            _flatten(where, value, f"{name}.", into, values)
        elif name in into:
            raise InvalidSweep(f"{where}: the name {name} is given twice.")
        else:
            into[name] = values.one(name, value)
