"""Parsers and formatters of amounts, memory, durations and times."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

THOUSAND = 1000
"""One whole device, core or unit: all amounts are counted in thousandths."""


class BadValue(ValueError):
    """A value that cannot be parsed; the message is one sentence for the user."""


_AMOUNT = re.compile(r"(\d{1,9})?(?:\.(\d{1,3})0*)?", re.ASCII)
_MEMORY = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_WORDS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]+)", re.IGNORECASE)

_MEBI = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}
_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86400),
}
MAX_DURATION_SECONDS = 10 * 365 * 86400
"""Ten years: a longer duration is a typing error."""


def parse_amount(text: str, what: str = "amount") -> int:
    """Read `2`, `0.5` or `2.5` as exact thousandths."""
    text = text.strip()
    if re.fullmatch(r"[0-9]{10,}(\.[0-9]*)?", text):
        raise BadValue(f"{what} '{text[:20]}' is too large a number.")
    match = _AMOUNT.fullmatch(text)
    if not match or not text or text == ".":
        raise BadValue(
            f"{what} '{text}' is not a number with at most three decimals; write 2, 0.5 or 2.5."
        )
    whole, part = match.groups()
    return int(whole or 0) * THOUSAND + int((part or "0").ljust(3, "0"))


def format_amount(amount: int) -> str:
    """Write thousandths as a user would type them."""
    whole, part = divmod(amount, THOUSAND)
    return str(whole) if not part else f"{whole}.{part:03d}".rstrip("0")


def parse_memory(text: str, what: str = "memory") -> int:
    """Read `8G`, `500M`, `24GB` or a bare number of MiB; rounds up to whole MiB."""
    match = _MEMORY.fullmatch(text.strip())
    if not match:
        raise BadValue(f"{what} '{text}' is not a size; write 8G, 500M or a number of MiB.")
    number, suffix = match.groups()
    mebi = float(number) * _MEBI[suffix.upper() or "M"]
    return max(int(mebi) if mebi == int(mebi) else int(mebi) + 1, 0)


def parse_duration(text: str, what: str = "time") -> int:
    """Read Slurm's forms (`90`, `1:30:00`, `2-12`) and ours (`90m`, `1d12h`) as seconds."""
    text = text.strip()
    seconds = _clock_form(text)
    if seconds is None:
        seconds = _word_form(text)
    if seconds is None:
        raise BadValue(
            f"{what} '{text}' is not a duration; write minutes, HH:MM:SS, D-HH:MM:SS, 90m or 1d12h."
        )
    if seconds > MAX_DURATION_SECONDS:
        raise BadValue(f"{what} '{text}' is longer than ten years.")
    return seconds


def _clock_form(text: str) -> int | None:
    days, dash, rest = text.rpartition("-")
    fields = rest.split(":")
    units = (3600, 60, 1) if dash or len(fields) == 3 else (60, 1)  # a bare number is minutes
    if len(fields) > len(units):
        return None
    if dash:  # D-HH, D-HH:MM, D-HH:MM:SS
        fields, units = [days, *fields], (86400, *units)
    if not all(field.isdecimal() and len(field) <= 9 for field in fields):
        return None
    return sum(int(field) * unit for field, unit in zip(fields, units, strict=False))


def _word_form(text: str) -> int | None:
    total, end = 0.0, 0
    for match in _WORDS.finditer(text):
        unit = _SECONDS.get(match[2].lower())
        if unit is None or text[end : match.start()].strip():
            return None
        total += float(match[1]) * unit
        end = match.end()
    return round(total) if end and not text[end:].strip() else None


def format_duration(seconds: float) -> str:
    """Write seconds the way a queue listing shows them: `1-02:03:04`, `2:03:04`, `0:07`."""
    left = max(int(seconds), 0)
    days, left = divmod(left, 86400)
    hours, left = divmod(left, 3600)
    minutes, left = divmod(left, 60)
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{left:02d}"
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"


def approximate_duration(seconds: float) -> str:
    """Write seconds with one unit and at most two digits where they matter: `90 min`, `2.5 h`."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{short_number(seconds / 3600)} h"
    return f"{short_number(seconds / 86400)} days"


def short_number(value: float) -> str:
    """Write a number with one decimal if it is below ten and not whole."""
    return f"{value:.1f}".removesuffix(".0") if value < 10 else f"{value:.0f}"


def two_digits(value: float) -> str:
    """Write a number with two digits where they matter: `0.028`, `2.4`, `42`, `1240`."""
    return f"{value:.2g}" if value < 99.5 else f"{value:.0f}"


_TIMES = {
    "midnight": (0, 0, 0), "noon": (12, 0, 0), "elevenses": (11, 0, 0), "fika": (15, 0, 0),
    "teatime": (16, 0, 0),
}  # fmt: skip
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK_FORMS = ("%H:%M:%S", "%H:%M", "%I%p", "%I:%M%p", "%I:%M:%S%p")


def parse_time(text: str, now: float, what: str = "begin") -> float:
    """Read a future time as sbatch does, or a duration from now, as a Unix time.

    `16:00`, `4pm`, `noon`, `tomorrow`, `friday 18:00`, `now+2hours`, `2026-12-24T18:00`, `12/24`.
    """
    from datetime import datetime

    word = " ".join(text.lower().split())
    if word == "now":
        return now
    if word.startswith("now") and word[3:].strip().startswith("+"):
        ahead = word[3:].strip()[1:].strip()  # Slurm: a bare number after now+ is seconds
        return now + parse_duration(f"{ahead}s" if ahead.isdecimal() else ahead, what)
    local = datetime.fromtimestamp(now).astimezone().replace(tzinfo=None)
    time = _day_and_time(word, local)
    if time is not None:
        return time
    try:
        date = datetime.fromisoformat(text.strip())
        return (date if date.tzinfo else date.astimezone()).timestamp()
    except (ValueError, OverflowError):  # not a date, or one that the C library cannot represent
        pass
    try:
        if re.fullmatch(r"\d{1,2}(:\d{2}){1,2}", word):
            raise BadValue("not a time of day, though it looks like one")
        return now + parse_duration(word.removeprefix("+"), what)
    except BadValue:
        raise BadValue(_invalid_time(text, word, what)) from None


def _day_and_time(word: str, now: datetime) -> float | None:
    """Return the next time with this day, time of day, or both in any order; None if unknown."""
    from datetime import timedelta

    day: datetime | None = None
    clock: tuple[int, int, int] | None = None
    weekly = False
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    for part in re.sub(r"(\d) (am|pm)\b", r"\1\2", word).split():
        if clock is None and (clock := _time_of_day(part)) is not None:
            continue
        if day is not None:
            return None
        if part in ("today", "tomorrow"):
            day = midnight + timedelta(days=part == "tomorrow")
        elif len(part) > 2 and (at := [name.startswith(part) for name in _WEEKDAYS]).count(True):
            day, weekly = midnight + timedelta(days=(at.index(True) - now.weekday()) % 7), True
        else:
            day = _date(part, midnight)
            if day is None:
                return None
    if day is None and clock is None:
        return None
    hour, minute, second = clock or (0, 0, 0)
    time = (day or midnight).replace(hour=hour, minute=minute, second=second)
    if time <= now and (day is None or weekly):
        time += timedelta(days=7 if weekly else 1)
    try:  # without an offset, so that the night in which clocks change gives the right hour
        return time.astimezone().timestamp()
    except (ValueError, OverflowError):  # the C library cannot represent it
        return None


def _time_of_day(word: str) -> tuple[int, int, int] | None:
    if word in _TIMES:
        return _TIMES[word]
    times = (_parsed(word, form) for form in _CLOCK_FORMS)  # a bare number is a duration
    return next(((time.hour, time.minute, time.second) for time in times if time), None)


def _date(word: str, midnight: datetime) -> datetime | None:
    """Read `2026-12-24`, `12/24`, `12/24/26` or `12.24.26`, as sbatch does."""
    word = word.replace(".", "/")
    if word.count("/") != 1:
        return _parsed(word, "%Y-%m-%d") or _parsed(word, "%m/%d/%y")
    years = (_parsed(f"{word}/{midnight.year + more}", "%m/%d/%Y") for more in (0, 1))
    return next((date for date in years if date is not None and date >= midnight), None)


def _parsed(word: str, form: str) -> datetime | None:
    from datetime import datetime

    try:
        return datetime.strptime(word, form)  # noqa: DTZ007 - local time
    except ValueError:
        return None


def _invalid_time(text: str, word: str, what: str) -> str:
    from difflib import get_close_matches

    words = ("now", "today", "tomorrow", *_TIMES, *_WEEKDAYS)
    near = get_close_matches(word.split(maxsplit=1)[0], words, 1) if word else []
    meant = f" Did you mean {near[0]}?" if near else ""
    return (
        f"{what} '{text}' is not a time.{meant}"
        " Examples: 18:00, 'friday 18:00', 2026-11-20T09:00, now+2hours."
    )


def printable(text: str, max_length: int) -> str:
    """Return at most `max_length` characters; those that are not printable become blanks."""
    if len(text) > max_length:
        text = f"{text[: max_length - 1]}…"
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
