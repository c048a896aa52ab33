"""Parsers of table cells: numbers, timestamps, durations, sizes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from typing import TypeVar

from stoker.core.model.units import MAX_DURATION_SECONDS, BadValue, parse_duration, parse_memory

MISSING = frozenset(
    {"", "-", "none", "null", "nan", "nat", "na", "n/a", "unknown", "invalid", "\\n"}
)
"""Spellings of a missing value, in lower case."""
UNLIMITED = frozenset({"unlimited", "partition_limit"})
T = TypeVar("T")
_MAX_CACHED = 100_000
"""Distinct cells of a column that are cached."""
_MAX_TIME = 1e11
"""Seconds since 1970 in the year 5138: a larger number is in a smaller unit."""

_MAX_AMOUNT = 10_000_000
"""Maximum GPUs or cores of a job."""


class BadCell(ValueError):
    """An invalid cell; the message says what was expected."""


def parse_cell(name: str, text: str, parse: Callable[[str], T]) -> T:
    """Parse a cell; the error has its name and its text."""
    try:
        return parse(text)
    except BadCell as error:
        raise BadCell(f"{name} '{text[:40]}' is not {error}") from None


def missing(text: str) -> bool:
    """Return True if a cell has no value."""
    return text.strip().lower() in MISSING


def parse_number(text: str) -> float:
    """Parse a non-negative number."""
    try:
        value = float(text)
    except ValueError:
        raise BadCell("a number") from None
    if not 0.0 <= value < inf:  # also rejects NaN
        raise BadCell("a number from 0 up")
    return value


def amount(text: str) -> float:
    """Parse a number of GPUs or cores."""
    value = parse_number(text)
    if value > _MAX_AMOUNT:
        raise BadCell(f"a number of at most {_MAX_AMOUNT:,}")
    return value


def parse_integer(text: str) -> int:
    """Parse an integer."""
    try:
        value = float(text)
        if value != int(value):
            raise ValueError
    except (ValueError, OverflowError):
        raise BadCell("a whole number") from None
    return int(value)


class Memo(dict[str, T]):
    """Cache of a parser: most cells of a column are equal."""

    def __init__(self, cell: Callable[[str], T]) -> None:
        self._cell = cell

    def __missing__(self, text: str) -> T:
        value = self._cell(text)
        if len(self) < _MAX_CACHED:
            self[text] = value
        return value


def _midnight(day: str) -> float:
    return datetime.fromisoformat(day.replace("/", "-")).replace(tzinfo=UTC).timestamp()


_days = Memo(_midnight)


def moment(text: str) -> float:
    """Parse seconds since 1970 or any other epoch, or a date; without a zone it is UTC."""
    if text[4:5] in ("-", "/"):
        try:
            if len(text) == 19 and text[13] == text[16] == ":":  # the usual form
                hour, minute, second = int(text[11:13]), int(text[14:16]), int(text[17:])
                if hour < 24 and minute < 60 and second < 60:
                    return _days[text[:10]] + (hour * 3600 + minute * 60 + second)
            date = datetime.fromisoformat(text.strip().replace("/", "-"))
            if date.tzinfo is None:
                date = date.replace(tzinfo=UTC)
            return date.timestamp()
        except (ValueError, OverflowError):
            pass  # a number such as 1.5e-05, or invalid
    try:
        value = float(text)
    except ValueError:
        raise BadCell("a number of seconds or a date such as 2026-11-01 12:00:00") from None
    return check_time(value, "a number of seconds (in milliseconds, end the column's name in _ms)")


def check_time(value: float, instead: str = f"a number of seconds below {_MAX_TIME:g}") -> float:
    """Return a time in seconds; raise BadCell if it is out of range."""
    if value < 0:
        raise BadCell("a number of seconds from 0 up")
    if not value < _MAX_TIME:  # also rejects NaN
        raise BadCell(instead)
    return value


def parse_time(text: str) -> float:
    """Parse a number of seconds after any epoch."""
    return check_time(parse_number(text))


def seconds(text: str) -> float:
    """Parse a number of seconds, or a duration as in Slurm (1-00:00:00)."""
    try:
        value = float(text)
    except ValueError:
        if ":" not in text:
            raise BadCell("a number of seconds, or D-HH:MM:SS") from None
        try:
            return float(parse_duration(text.partition(".")[0]))
        except BadValue:
            raise BadCell("a number of seconds, or D-HH:MM:SS") from None
    return check_duration(value)


def check_duration(value: float) -> float:
    """Return a run time in seconds; raise BadCell if it is out of range."""
    if not value >= 0.0:  # also rejects NaN
        raise BadCell("a number of seconds from 0 up")
    if value > MAX_DURATION_SECONDS:
        raise BadCell("a time of at most ten years")
    return value


def limit(text: str) -> int | None:
    """Parse a time limit in whole seconds; None: unlimited."""
    if missing(text) or text.strip().lower() in UNLIMITED:
        return None
    try:
        return limit_of(float(text))
    except ValueError:
        return limit_of(seconds(text))


def limit_of(value: float) -> int | None:
    """Return a time limit in whole seconds; None if it is over ten years."""
    if not value >= 0.0:
        raise BadCell("a number of seconds from 0 up")
    return round(value) or None if value <= MAX_DURATION_SECONDS else None


def size(text: str) -> int:
    """Parse a number of MiB, or a size such as 64G."""
    try:
        return parse_memory(text)
    except BadValue:
        pass
    try:
        return round(parse_number(text))
    except BadCell:
        raise BadCell("a size such as 64G or a number of MiB") from None
