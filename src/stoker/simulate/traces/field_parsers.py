"""What stands in one cell of a table: a number, a moment, a duration, a size."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from typing import TypeVar

from stoker.core.units import LONGEST, BadValue, parse_duration, parse_memory

MISSING = frozenset(
    {"", "-", "none", "null", "nan", "nat", "na", "n/a", "unknown", "invalid", "\\n"}
)
"""How tables say that nothing is known, in small letters."""
UNLIMITED = frozenset({"unlimited", "partition_limit"})
T = TypeVar("T")
_REMEMBERED = 100_000
"""So many different cells of a column; the rest are read each time."""
_LATEST = 1e11
"""Seconds since 1970 in the year 5138: a larger number counts something smaller."""

_LARGEST = 10_000_000
"""No job has more GPUs or cores than that."""


class BadCell(ValueError):
    """It cannot be read; the message says what it should have been."""


def missing(text: str) -> bool:
    """Whether a cell says that nothing is known."""
    return text.strip().lower() in MISSING


def number(text: str) -> float:
    """A number that is not negative."""
    try:
        value = float(text)
    except ValueError:
        raise BadCell("a number") from None
    if not 0.0 <= value < inf:  # written so that NaN is refused too
        raise BadCell("a number from 0 up")
    return value


def amount(text: str) -> float:
    """So many GPUs or cores of one job."""
    value = number(text)
    if value > _LARGEST:
        raise BadCell(f"a number of at most {_LARGEST:,}")
    return value


def whole(text: str) -> int:
    """A whole number, of either sign."""
    try:
        value = float(text)
        if value != int(value):
            raise ValueError
    except (ValueError, OverflowError):
        raise BadCell("a whole number") from None
    return int(value)


class Memo(dict[str, T]):
    """What was read before need not be read again: most cells of a column are alike."""

    def __init__(self, cell: Callable[[str], T]) -> None:
        self._cell = cell

    def __missing__(self, text: str) -> T:
        value = self._cell(text)
        if len(self) < _REMEMBERED:
            self[text] = value
        return value


def _midnight(day: str) -> float:
    return datetime.fromisoformat(day.replace("/", "-")).replace(tzinfo=UTC).timestamp()


_days = Memo(_midnight)


def moment(text: str) -> float:
    """Seconds since 1970 or since any other beginning, or a date; one without a zone is UTC."""
    if text[4:5] in ("-", "/"):
        try:
            if len(text) == 19 and text[13] == text[16] == ":":  # as nearly all are written
                hour, minute, second = int(text[11:13]), int(text[14:16]), int(text[17:])
                if hour < 24 and minute < 60 and second < 60:
                    return _days[text[:10]] + (hour * 3600 + minute * 60 + second)
            found = datetime.fromisoformat(text.strip().replace("/", "-"))
            if found.tzinfo is None:
                found = found.replace(tzinfo=UTC)
            return found.timestamp()
        except (ValueError, OverflowError):
            pass  # a number such as 1.5e-05, or nothing that can be read
    try:
        value = float(text)
    except ValueError:
        raise BadCell("a number of seconds or a date such as 2026-11-01 12:00:00") from None
    return in_our_time(value, "a number of seconds (in milliseconds, end the column's name in _ms)")


def in_our_time(value: float, instead: str = f"a number of seconds below {_LATEST:g}") -> float:
    """A number of seconds since some beginning, unless no job was ever submitted then."""
    if value < 0:
        raise BadCell("a number of seconds from 0 up")
    if not value < _LATEST:  # written so that NaN is refused too
        raise BadCell(instead)
    return value


def seconds(text: str) -> float:
    """A number of seconds, or a duration as Slurm writes it (1-00:00:00)."""
    try:
        value = float(text)
    except ValueError:
        if ":" not in text:
            raise BadCell("a number of seconds, or D-HH:MM:SS") from None
        try:
            return float(parse_duration(text.partition(".")[0]))
        except BadValue:
            raise BadCell("a number of seconds, or D-HH:MM:SS") from None
    return bearable(value)


def bearable(value: float) -> float:
    """A number of seconds for which a job may have run."""
    if not value >= 0.0:  # written so that NaN is refused too
        raise BadCell("a number of seconds from 0 up")
    if value > LONGEST:
        raise BadCell("a time of at most ten years")
    return value


def limit(text: str) -> int | None:
    """Whole seconds, at least one; None: without end."""
    if missing(text) or text.strip().lower() in UNLIMITED:
        return None
    try:
        return limit_of(float(text))
    except ValueError:
        return limit_of(seconds(text))


def limit_of(value: float) -> int | None:
    """A number of seconds as a time limit; one of more than ten years is none."""
    if not value >= 0.0:
        raise BadCell("a number of seconds from 0 up")
    return round(value) or None if value <= LONGEST else None


def size(text: str) -> int:
    """Megabytes, or a size such as 64G."""
    try:
        return parse_memory(text)
    except BadValue:
        pass
    try:
        return round(number(text))
    except BadCell:
        raise BadCell("a size such as 64G or a number of MiB") from None
