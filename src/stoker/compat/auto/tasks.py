"""Tasks as dicts with the original field names, and as tables."""

from __future__ import annotations

from stoker.cli.output import table, times
from stoker.cli.output.table import Cell, Column
from stoker.compat.auto.options import DEFAULT_PRIORITY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

HOLDING = "CONFIGURING,QUEUED,RUNNING,SUSPENDED,COMPLETING"
UNFINISHED = f"PENDING,{HOLDING}"


def gpus(view: dict[str, Any]) -> str:
    """Return the GPUs of a task, comma-separated; empty before its start."""
    return ",".join((view.get("devices") or {}).get("gpu") or [])


def number(view: dict[str, Any]) -> int:
    """Return how many GPUs a task asked for."""
    return int(float((view.get("request") or {}).get("gpus") or 0))


def nodes(view: dict[str, Any]) -> str:
    """Return the nodes of a task, comma-separated; empty before its start."""
    return ",".join(view.get("nodes") or ())


def return_code(view: dict[str, Any]) -> int | None:
    """Return the exit code; negative for a signal, as in Python."""
    if view.get("result") is None:
        return None
    if view.get("signal"):
        return -int(view["signal"])
    code = view.get("exit_code")
    return int(view["result"]) if code is None else int(code)


CELLS: dict[Column, Callable[[dict[str, Any]], object]] = {
    Column("ID", right=True): lambda view: view["id"],
    Column("NUM GPUS", right=True): number,
    Column("GPUS"): lambda view: gpus(view) or "-",
    Column("NODE"): lambda view: nodes(view) or "-",
    Column("PRIORITY", right=True): lambda view: DEFAULT_PRIORITY - int(view["priority"]),
    Column("SUBMITTED"): lambda view: times.absolute(view.get("submitted_at")),
    Column("STARTED"): lambda view: times.absolute(view.get("started_at")) or "-",
    Column("ENDED"): lambda view: times.absolute(view.get("ended_at")) or "-",
    Column("TIME", right=True): lambda view: times.duration(view.get("elapsed") or 0),
    Column("CODE", right=True): return_code,
    Column("WAITS FOR", cut=True): lambda view: view.get("reason_text") or "-",
    Column("COMMAND", cut=True): lambda view: view["command"],
    Column("LOG"): lambda view: view["log"],
}
"""All columns, and the cell of a task in each."""
COLUMNS = {column.title: column for column in CELLS}

RUNNING = ("ID", "NUM GPUS", "GPUS", "NODE", "PRIORITY", "STARTED", "TIME", "COMMAND")
PENDING = ("ID", "NUM GPUS", "PRIORITY", "SUBMITTED", "WAITS FOR", "COMMAND")
SUCCEEDED = ("ID", "NUM GPUS", "GPUS", "NODE", "PRIORITY", "ENDED", "TIME", "COMMAND")
FAILED = ("ID", "NUM GPUS", "GPUS", "NODE", "PRIORITY", "ENDED", "TIME", "CODE", "COMMAND")


def task(view: dict[str, Any]) -> dict[str, Any]:
    """Return a job with the field names of the original."""
    return {
        "id": view["id"],
        "cmd": view["command"],
        "num_gpus": number(view),
        "priority": DEFAULT_PRIORITY - int(view["priority"]),
        "GPUs": gpus(view),
        "node": nodes(view) or None,
        "state": view["state"],
        "submit_time": _seed_time(view.get("submitted_at")),
        "start_time": _seed_time(view.get("started_at")),
        "end_time": _seed_time(view.get("ended_at")),
        "return_code": return_code(view),
        "reason": view.get("reason_text") or view.get("cause"),
        "log": view["log"],
    }


def write(
    views: Sequence[dict[str, Any]], columns: tuple[str, ...], *, verbose: bool = False
) -> None:
    """Print tasks as a table, or "none"."""
    if not views:
        print("none")
        return
    more = ("LOG",) if "STARTED" in columns else ("STARTED", "LOG")
    shown = [COLUMNS[title] for title in ((*columns, *more) if verbose else columns)]
    table.write(shown, [[Cell(CELLS[column](view)) for column in shown] for view in views])


def _seed_time(iso: str | None) -> str | None:
    return times.absolute(iso).replace(" ", "-") if iso else None
