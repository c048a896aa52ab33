"""Queues as text."""

from __future__ import annotations

from shlex import join

from stoker.cli.output import clean, colour, counted
from stoker.cli.output.table import Cell, Column, render, terminal_width
from stoker.cli.output.times import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COLUMNS = (
    Column("ID", right=True),
    Column("STATUS"),
    Column("TIME", right=True),
    Column("NEEDS"),
    Column("HAS"),
    Column("NODE"),
    Column("COMMAND", cut=True),
)
COLOURS = {"Running": "green", "Failed": "red", "Created": "yellow"}
ORDER = {"fifo": "first come, first served", "backfill": "backfill"}
EACH = 8
"""Maximum devices of a type that are listed individually."""


def lines(views: list[dict[str, Any]]) -> list[str]:
    """Return the lines of all queues."""
    text_lines: list[str] = []
    for view in views:
        text_lines += ([""] if text_lines else []) + _queue(view)
    return text_lines


def _queue(view: dict[str, Any]) -> list[str]:
    painted = colour.is_enabled()
    name = colour.paint(clean(view["name"]), "bold") if painted else clean(view["name"])
    text_lines = [f"{name} ({ORDER[view['order']]})"]
    text_lines += [_free(kind, view) for kind in view["resources"]]
    jobs = [*view["running_jobs"], *view["future_jobs"], *view["past_jobs"]]
    if jobs:
        table = render(COLUMNS, [_row(job) for job in jobs], width=_width(), coloured=painted)
        text_lines.append("  " + table[0])
        for job, line in zip(jobs, table[1:], strict=True):
            text_lines.append("  " + line)
            if job["status"].startswith("Failed"):
                text_lines.append(f"      log: {clean(job['log'])}")
    for key, what in (("future_jobs", "pending job"), ("past_jobs", "past job")):
        if view["left_out"][key]:
            text_lines.append(f"  and {counted(view['left_out'][key], what)} more")
    return text_lines


def _width() -> int | None:
    width = terminal_width()
    return width - 2 if width is not None else None


def _free(kind: str, view: dict[str, Any]) -> str:
    has, free = view["resources"][kind], view["available"][kind]
    text = f"  {clean(kind)}: {_number(sum(free.values()))} of {_number(sum(has.values()))} free"
    if 1 < len(has) <= EACH:
        text += " (" + ", ".join(f"{clean(name)}: {_number(free[name])}" for name in has) + ")"
    return text


def _number(value: float) -> str:
    """Format an amount, exact to three decimals."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _row(job: dict[str, Any]) -> list[str]:
    status = job["status"]
    return [
        str(job["id"]),
        Cell(status, COLOURS.get(status.partition("(")[0], "")),
        duration(job["elapsed"]) or "-",
        " ".join(f"{kind}:{_number(amount)}" for kind, amount in job["require"].items()) or "-",
        " ".join(f"{kind}:{','.join(names)}" for kind, names in job["allocation"].items()) or "-",
        job["node"] or "-",
        join(job["cmd"]) if len(job["cmd"]) > 1 else job["cmd"][0],
    ]
