"""Sweeps in few words, as the queue and the list of sweeps have them."""

from __future__ import annotations

import time

from stoker.cli.output import clean, colour, times
from stoker.cli.output.table import Cell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SHORT = {"RUNNING": "R", "WAITING": "PD", "HELD": "PD", "DONE": "CD", "CANCELLED": "CA"}
"""The states of a sweep as a list of jobs has them."""
WORDS = {"running": "run", "failed": "failed", "cancelled": "cancelled"}


def brief(value: object) -> str:
    """Return a value as it fits into a table: 0.000123457, 1e-05, text."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return "null" if value is None else clean(value)


def figure(value: object) -> str:
    """Return a figure, or `-` where there is none."""
    return f"{value:.6g}" if isinstance(value, int | float) else "-"


def params(found: dict[str, Any] | None) -> str:
    """Return `lr=0.1,bs=16`."""
    return ",".join(f"{clean(name)}={brief(value)}" for name, value in (found or {}).items())


def ended(sweep: dict[str, Any]) -> int:
    """Return how many trials came to a good end, early or not."""
    return int(sweep["counts"].get("done", 0)) + int(sweep["counts"].get("stopped", 0))


def progress(sweep: dict[str, Any]) -> str:
    """Return `7/20 done, 2 run, 1 failed`."""
    total = sweep.get("total")
    parts = [f"{ended(sweep):,}{'' if total is None else f'/{total:,}'} done"]
    for word, said in WORDS.items():
        if sweep["counts"].get(word):
            parts.append(f"{sweep['counts'][word]:,} {said}")
    if sweep.get("held") and not sweep.get("ended_at"):
        parts.append("held")
    return ", ".join(parts)


def best(sweep: dict[str, Any]) -> str:
    """Return `loss=0.31`; empty where there is none yet."""
    found = sweep.get("best")
    return f"{clean(sweep.get('metric'))}={figure(found['value'])}" if found else ""


def state(sweep: dict[str, Any]) -> str:
    """Return its state as a coloured word of a list."""
    short = SHORT.get(str(sweep["state"]), str(sweep["state"]))
    return Cell(short, colour.STATE_COLOURS.get(short, ""))


def age(sweep: dict[str, Any]) -> str:
    """Return how long it has been there, or was until its end."""
    began = times.epoch(sweep.get("created_at"))
    end = times.epoch(sweep.get("ended_at")) or time.time()
    return times.duration(end - began) if began is not None else ""


def queue_row(sweep: dict[str, Any]) -> list[str]:
    """Return its line of the queue, in the columns of a job."""
    told = f"{progress(sweep)}, best {best(sweep)}" if best(sweep) else progress(sweep)
    if sweep.get("note"):
        told = f"({clean(sweep['note'])})"
    return [
        str(sweep["label"]),
        str(sweep["name"]),
        str(sweep["user"]),
        state(sweep),
        age(sweep),
        "-",
        "-",
        told,
    ]
