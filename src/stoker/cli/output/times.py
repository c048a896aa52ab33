"""Format and parse times and durations, without importing datetime."""

from __future__ import annotations

import time

from stoker.client.errors import UsageError

UNITS = {
    "s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600,
    "d": 86400, "day": 86400, "w": 604800, "week": 604800,
}  # fmt: skip


def duration(seconds: float | None) -> str:
    """Return `0:07`, `12:30`, `1:02:03`, `2-03:04:05`, as Slurm does."""
    if seconds is None:
        return ""
    days, left = divmod(int(max(0, seconds)), 86400)
    hours, left = divmod(left, 3600)
    minutes, secs = divmod(left, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{secs:02}"
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def approximate(seconds: float) -> str:
    """Return a rounded duration: `40 s`, `14 min`, `3 h`, `2 days`."""
    seconds = abs(seconds)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} days"


def epoch(iso: str | None) -> float | None:
    """Return the seconds since 1970 of `2026-11-15T20:31:02.512Z`."""
    if not iso:
        return None
    year, month, day = int(iso[0:4]), int(iso[5:7]), int(iso[8:10])
    clock = iso[11:].removesuffix("Z").split("+")[0].split(":")
    seconds = sum(float(part) * unit for part, unit in zip(clock, (3600, 60, 1), strict=False))
    return _days(year, month, day) * 86400 + seconds


def iso(seconds: float) -> str:
    """Return the ISO-8601 form, in UTC, of seconds since 1970; within years 1970 to 9999."""
    seconds = min(max(seconds, 0.0), 253402300799.0)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + "Z"


def relative(iso_time: str | None, now: float | None = None) -> str:
    """Return `3 min ago`, `in 2 h`; empty for None."""
    at = epoch(iso_time)
    if at is None:
        return ""
    distance = at - (time.time() if now is None else now)
    if abs(distance) < 1:
        return "now"
    return f"in {approximate(distance)}" if distance > 0 else f"{approximate(distance)} ago"


def absolute(iso_time: str | None) -> str:
    """Return local time as `2026-11-15 21:31:02`; empty for None."""
    at = epoch(iso_time)
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def list_time(iso_time: str | None, verbose: bool = False) -> str:
    """Return a time for a list: relative, or absolute if verbose."""
    return absolute(iso_time) if verbose else relative(iso_time)


def parse_duration(text: str) -> float:
    """Return the seconds of `90`, `5m`, `1d12h`, `2 hours`."""
    remaining = text.strip().lower().replace(" ", "")
    total = 0.0
    while remaining:
        digits = remaining[: len(remaining) - len(remaining.lstrip("0123456789."))]
        remaining = remaining[len(digits) :]
        unit = remaining[: len(remaining) - len(remaining.lstrip("abcdefghijklmnopqrstuvwxyz"))]
        remaining = remaining[len(unit) :]
        scale = UNITS.get(unit or "s") or UNITS.get(unit.removesuffix("s"))
        if scale is None or not digits.replace(".", "", 1).isdecimal():
            break
        total += float(digits) * scale
    else:
        if text.strip():
            return total
    raise UsageError(f"{text!r} is not a duration; type it as 90s, 5m, 2h or 1d12h.")


def parse_time(text: str, now: float | None = None) -> float:
    """Return the seconds since 1970 of `2h` (ago), `now-2hours`, `16:00`, `2026-11-01[T12:00]`."""
    now = time.time() if now is None else now
    lower = text.strip().lower()
    if lower in {"now", "today", "yesterday", "midnight"}:
        return now if lower == "now" else _midnight(now) - 86400 * (lower == "yesterday")
    if lower.startswith(("now-", "now+")):
        distance = parse_duration(lower[4:])
        return now - distance if lower[3] == "-" else now + distance
    for form in ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d"):
        try:
            parsed = time.strptime(text.strip().replace(" ", "T").removesuffix("Z"), form)
        except ValueError:
            continue
        return epoch(text.strip()) or 0.0 if lower.endswith("z") else time.mktime(parsed)
    hours, colon, minutes = lower.partition(":")
    if colon and hours.isdecimal() and minutes.isdecimal():
        return _midnight(now) + int(hours) * 3600 + int(minutes) * 60
    try:
        return now - parse_duration(lower.removesuffix("ago"))
    except UsageError:
        raise UsageError(
            f"{text!r} is not a time; type it as 2h (ago), yesterday, 16:00, 2026-11-01 or "
            "2026-11-01T12:00."
        ) from None


def _midnight(now: float) -> float:
    today = time.localtime(now)
    return time.mktime((today.tm_year, today.tm_mon, today.tm_mday, 0, 0, 0, 0, 0, -1))


def _days(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01; years are counted from March."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
