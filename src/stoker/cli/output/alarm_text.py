"""Alarms as words and lines."""

from __future__ import annotations

import time

from stoker.cli.output import clean, times
from stoker.wire import JsonObject


def alarm_word(alarm: JsonObject) -> str:
    """Return the kind in one word: `idle`, `hung`, `NaN`."""
    kind = str(alarm["kind"]).removeprefix("gpu_").replace("_", " ")
    return {"nan": "NaN", "ecc": "ECC", "xid": "Xid"}.get(kind, kind)


def age(alarm: JsonObject, now: float | None = None) -> float:
    """Return the seconds since an alarm began."""
    now = time.time() if now is None else now
    return max(now - (times.epoch(alarm["since"]) or now), 0.0)


def short_alarm(alarms: list[JsonObject], now: float | None = None) -> str:
    """Return the oldest alarm for a list: `idle 14 min`, `idle 14 min +1`."""
    more = f" +{len(alarms) - 1}" if len(alarms) > 1 else ""
    return f"{alarm_word(alarms[0])} {times.approximate(age(alarms[0], now))}{more}"


def alarm_line(alarm: JsonObject, now: float | None = None) -> str:
    """Return an alarm in one line."""
    on = f" (GPU {alarm['node']}/{alarm['gpu']})" if alarm["gpu"] is not None else ""
    lasted = times.approximate(age(alarm, now))
    response = alarm.get("response") or "tell"
    then = f"; action: {response}" if response not in ("tell", "mark") else ""
    return f"{alarm_word(alarm)} for {lasted}: {clean(alarm['text'] + on)}{then}"


def evidence_lines(alarm: JsonObject) -> list[str]:
    """Return what the processes of the job were doing, as indented lines."""
    return [f"  {clean(line)}" for line in str(alarm.get("evidence") or "").splitlines()]
