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

ID = Column("ID", right=True)
NUMBER = Column("NUM GPUS", right=True)
GPUS = Column("GPUS")
NODE = Column("NODE")
PRIORITY = Column("PRIORITY", right=True)
SUBMITTED = Column("SUBMITTED")
STARTED = Column("STARTED")
ENDED = Column("ENDED")
TIME = Column("TIME", right=True)
CODE = Column("CODE", right=True)
WAITS = Column("WAITS FOR", cut=True)
COMMAND = Column("COMMAND", cut=True)
LOG = Column("LOG")

RUNNING = (ID, NUMBER, GPUS, NODE, PRIORITY, STARTED, TIME, COMMAND)
PENDING = (ID, NUMBER, PRIORITY, SUBMITTED, WAITS, COMMAND)
SUCCEEDED = (ID, NUMBER, GPUS, NODE, PRIORITY, ENDED, TIME, COMMAND)
FAILED = (ID, NUMBER, GPUS, NODE, PRIORITY, ENDED, TIME, CODE, COMMAND)


def task(view: dict[str, Any]) -> dict[str, Any]:
    """Return a job with the field names of the original."""
    gpus = (view.get("devices") or {}).get("gpu") or []
    return {
        "id": view["id"],
        "cmd": view["command"],
        "num_gpus": number(view),
        "priority": DEFAULT_PRIORITY - int(view["priority"]),
        "GPUs": ",".join(gpus),
        "node": nodes(view) or None,
        "state": view["state"],
        "submit_time": _seed_time(view.get("submitted_at")),
        "start_time": _seed_time(view.get("started_at")),
        "end_time": _seed_time(view.get("ended_at")),
        "return_code": return_code(view),
        "reason": view.get("reason_text") or view.get("cause"),
        "log": view["log"],
    }


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


def write(
    views: Sequence[dict[str, Any]], columns: tuple[Column, ...], *, verbose: bool = False
) -> None:
    """Print tasks as a table, or "none"."""
    if not views:
        print("none")
        return
    more = (LOG,) if STARTED in columns else (STARTED, LOG)
    shown = (*columns, *more) if verbose else columns
    table.write(shown, [[_cell(view, column) for column in shown] for view in views])


def _cell(view: dict[str, Any], column: Column) -> str:
    return Cell(CELLS[column.title](view))


def _seed_time(iso: str | None) -> str | None:
    return times.absolute(iso).replace(" ", "-") if iso else None


CELLS: dict[str, Callable[[dict[str, Any]], object]] = {
    ID.title: lambda view: view["id"],
    NUMBER.title: number,
    GPUS.title: lambda view: ",".join((view.get("devices") or {}).get("gpu") or []) or "-",
    NODE.title: lambda view: nodes(view) or "-",
    PRIORITY.title: lambda view: DEFAULT_PRIORITY - int(view["priority"]),
    SUBMITTED.title: lambda view: times.absolute(view.get("submitted_at")),
    STARTED.title: lambda view: times.absolute(view.get("started_at")) or "-",
    ENDED.title: lambda view: times.absolute(view.get("ended_at")) or "-",
    TIME.title: lambda view: times.duration(view.get("elapsed") or 0),
    CODE.title: return_code,
    WAITS.title: lambda view: view.get("reason_text") or "-",
    COMMAND.title: lambda view: view["command"],
    LOG.title: lambda view: view["log"],
}
