"""Fields of a sweep as text, for the queue and the list of sweeps."""

from __future__ import annotations

import time

from stoker.cli.output import clean, colour, times
from stoker.cli.output.table import Cell
from stoker.wire import JsonObject

STATE_CODES = {"RUNNING": "R", "WAITING": "PD", "HELD": "PD", "DONE": "CD", "CANCELLED": "CA"}
"""State of a sweep -> state code of a job."""
COUNT_NAMES = {"running": "run", "failed": "failed", "cancelled": "cancelled"}


def value_text(value: object) -> str:
    """Return a parameter value for a table: 0.000123457, 1e-05, text."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return "null" if value is None else clean(value)


def number_text(value: object) -> str:
    """Return a number, or `-` if there is none."""
    return f"{value:.6g}" if isinstance(value, int | float) else "-"


def params_text(params: JsonObject | None) -> str:
    """Return `lr=0.1,bs=16`."""
    return ",".join(f"{clean(name)}={value_text(value)}" for name, value in (params or {}).items())


def completed_count(sweep: JsonObject) -> int:
    """Return the number of completed trials, including those stopped early."""
    return int(sweep["counts"].get("done", 0)) + int(sweep["counts"].get("stopped", 0))


def progress_text(sweep: JsonObject) -> str:
    """Return `7/20 done, 2 run, 1 failed`."""
    total = sweep.get("total")
    parts = [f"{completed_count(sweep):,}{'' if total is None else f'/{total:,}'} done"]
    for key, name in COUNT_NAMES.items():
        if sweep["counts"].get(key):
            parts.append(f"{sweep['counts'][key]:,} {name}")
    if sweep.get("held") and not sweep.get("ended_at"):
        parts.append("held")
    return ", ".join(parts)


def best_text(sweep: JsonObject) -> str:
    """Return `loss=0.31`; empty if there is no value yet."""
    trial = sweep.get("best")
    return f"{clean(sweep.get('metric'))}={number_text(trial['value'])}" if trial else ""


def state_cell(sweep: JsonObject) -> str:
    """Return the state code as a coloured cell."""
    short = STATE_CODES.get(str(sweep["state"]), str(sweep["state"]))
    return Cell(short, colour.STATE_COLOURS.get(short, ""))


def age_text(sweep: JsonObject) -> str:
    """Return the time since its creation, until its end if it has ended."""
    began = times.epoch(sweep.get("created_at"))
    end = times.epoch(sweep.get("ended_at")) or time.time()
    return times.duration(end - began) if began is not None else ""


def queue_row(sweep: JsonObject) -> list[str]:
    """Return the cells of a sweep in the columns of the queue."""
    best = best_text(sweep)
    details = progress_text(sweep) + (f", best {best}" if best else "")
    if sweep.get("note"):
        details = f"({clean(sweep['note'])})"
    return [
        str(sweep["label"]),
        str(sweep["name"]),
        str(sweep["user"]),
        state_cell(sweep),
        age_text(sweep),
        "-",
        "-",
        details,
    ]
