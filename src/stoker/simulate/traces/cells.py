"""What stands in one cell of a table: a number, a moment, a duration, a size."""

from __future__ import annotations

from datetime import UTC, datetime
from math import isfinite

from stoker.core.units import BadValue, parse_duration, parse_memory

MISSING = frozenset(
    {"", "-", "none", "null", "nan", "nat", "na", "n/a", "unknown", "invalid", "\\n"}
)
"""How tables say that nothing is known, in small letters."""
UNLIMITED = frozenset({"unlimited", "partition_limit"})
_LATEST = 1e11
"""Seconds since 1970 in the year 5138: a larger number counts something smaller."""


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
    if not isfinite(value) or value < 0:
        raise BadCell("a number from 0 up")
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


def moment(text: str) -> float:
    """Seconds since 1970 or since any other beginning, or a date; one without a zone is UTC."""
    if text[4:5] in ("-", "/"):
        try:
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
    if not -_LATEST < value < _LATEST:  # written so that NaN is refused too
        raise BadCell("a number of seconds (in milliseconds, end the column's name in _ms)")
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
    if not isfinite(value) or value < 0:
        raise BadCell("a number of seconds from 0 up")
    return value


def limit(text: str) -> int | None:
    """Whole seconds, at least one; None: without end."""
    if missing(text) or text.strip().lower() in UNLIMITED:
        return None
    return round(seconds(text)) or None


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
