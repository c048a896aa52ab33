"""Exact amounts, memory, durations and moments, and how people type them."""

from __future__ import annotations

import re

THOUSAND = 1000
"""One whole device, core or unit, in the thousandths that all amounts are counted in."""


class BadValue(ValueError):
    """A value that somebody typed and that cannot be read; the message is one sentence."""


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
LONGEST = 10 * 365 * 86400
"""No duration is longer than ten years: a larger one is a slip of the finger."""


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
    """Write thousandths as a person would type them."""
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
    if seconds > LONGEST:
        raise BadValue(f"{what} '{text}' is longer than ten years.")
    return seconds


def _clock_form(text: str) -> int | None:
    days_text, dash, rest = text.rpartition("-")
    if dash and not (days_text.isdecimal() and len(days_text) <= 9):
        return None
    fields = rest.split(":")
    if not all(field.isdecimal() and len(field) <= 9 for field in fields) or len(fields) > 3:
        return None
    numbers = [int(field) for field in fields]
    if dash:  # D-HH, D-HH:MM, D-HH:MM:SS
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
        return int(days_text) * 86400 + hours * 3600 + minutes * 60 + seconds
    if len(numbers) == 1:  # a bare number is minutes, as in Slurm
        return numbers[0] * 60
    if len(numbers) == 2:
        return numbers[0] * 60 + numbers[1]
    return numbers[0] * 3600 + numbers[1] * 60 + numbers[2]


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


def parse_moment(text: str, now: float, what: str = "begin") -> float:
    """Read `now+1hour`, `16:00`, `2026-12-24T18:00` or `90m` (from now) as a Unix time."""
    from datetime import datetime, timedelta

    text = text.strip()
    if text.lower().startswith("now"):
        rest = text[3:].strip()
        if not rest:
            return now
        if rest.startswith("+"):
            ahead = rest[1:].strip()  # Slurm: a bare number after now+ is seconds
            return now + parse_duration(f"{ahead}s" if ahead.isdecimal() else ahead, what)
    here = datetime.fromtimestamp(now).astimezone()
    if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", text):
        clock = [int(part) for part in text.split(":")]
        if clock[0] > 23 or any(part > 59 for part in clock[1:]):
            raise BadValue(f"{what} '{text}' is not a time of day; write HH:MM.")
        today = here.replace(hour=clock[0], minute=clock[1], second=(*clock, 0)[2], microsecond=0)
        coming = today if today > here else today + timedelta(days=1)
        # Without its offset, so that the night in which clocks change gives the right hour.
        return coming.replace(tzinfo=None).astimezone().timestamp()
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.astimezone()).timestamp()
    except (ValueError, OverflowError):  # no date, or one that no clock of this machine has
        pass
    try:
        return now + parse_duration(text.removeprefix("+"), what)
    except BadValue:
        raise BadValue(
            f"{what} '{text}' is not a moment; write 16:00, now+1hour, 90m or 2026-12-24T18:00."
        ) from None
