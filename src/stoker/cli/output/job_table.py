"""Lists of jobs: the usual columns, columns of one's choice, a format of one's own."""

from __future__ import annotations

import time

from stoker.cli.output import clean, colour, counted, times
from stoker.cli.output.table import Cell, Column
from stoker.client import fast_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

QUEUE = (
    Column("JOBID", right=True),
    Column("NAME", cut=True),
    Column("USER", cut=True, drop=6),
    Column("ST"),
    Column("TIME", right=True),
    Column("LEFT", right=True, drop=5),
    Column("GPUS", right=True),
    Column("NODE/REASON", whole=3),
)
COMMAND = Column("COMMAND", spare=24)
RANGES = 120
"""Terminals with fewer columns show expected times without their ranges."""
ALL_GPUS = 64
"""So many mean as many as there are."""
NAME = 1
"""The place of that column; the parameters of trials stand behind it, if there are any."""
USER = 2
OLD = 60.0
"""Seconds after which it is said how old a forecast is."""
GPUS = 6
"""The place of that column; epochs stand before it, if any job has some."""


def queue_table(
    views: Sequence[dict[str, Any]],
    *,
    verbose: bool = False,
    sweeps: Sequence[dict[str, Any]] = (),
    width: int | None = None,
) -> tuple[list[Column], list[list[str]]]:
    """Return columns and rows of the queue; columns for expected times if any are known."""
    columns = list(QUEUE)
    if sweeps:
        views = _among(views, sweeps)
    if len({view.get("user") for view in views}) > 1:
        columns[USER] = Column("USER", cut=True, drop=3)
    rows = [_row(view) for view in views]
    if any(view.get("params") for view in views):
        columns.insert(NAME + 1, Column("PARAMS", cut=True))
        for row, view in zip(rows, views, strict=True):
            row.insert(NAME + 1, _params(view))
    if any(epochs(view.get("training")) != "-" for view in views):
        at = len(columns) - len(QUEUE) + GPUS
        columns.insert(at, Column("EPOCHS", right=True, drop=4))
        for row, view in zip(rows, views, strict=True):
            row.insert(at, epochs(view.get("training")))
    if any(_is_estimated(view) for view in views):
        from stoker.cli.output.estimates import cell

        columns[-1:-1] = (
            Column("START", drop=1), Column(_eta_heading(views), drop=2),
        )  # fmt: skip
        for row, view in zip(rows, views, strict=True):
            found = view.get("foreseen") or {}
            start = cell(found.get("start"), verbose=verbose, ranged=False)
            end = cell(found.get("end"), verbose=verbose, ranged=width is None or width >= RANGES)
            row[-1:-1] = start or ("-" if view["state"] == "PENDING" else ""), end or "-"
    columns.append(COMMAND)
    for row, view in zip(rows, views, strict=True):
        row.append(str(view.get("command") or ""))
    return columns, rows


def _is_estimated(view: dict[str, Any]) -> bool:
    found = view.get("foreseen") or {}
    return bool(found.get("start") or found.get("end"))


def _eta_heading(views: Sequence[dict[str, Any]]) -> str:
    """Return the column's name, with its age once that matters."""
    at = next(view["foreseen"].get("at") for view in views if view.get("foreseen"))
    age = time.time() - (times.epoch(at) or time.time())
    return f"ETA ({times.rough(age)} old)" if age >= OLD else "ETA"


def _among(
    views: Sequence[dict[str, Any]], sweeps: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Put each sweep where its trials would stand: what runs before what waits."""
    runs = [sweep for sweep in sweeps if sweep["state"] == "RUNNING"]
    waits = [sweep for sweep in sweeps if sweep["state"] != "RUNNING"]
    first = next(
        (place for place, view in enumerate(views) if view["state"] == "PENDING"), len(views)
    )
    return [*runs, *views[:first], *waits, *views[first:]]


def _row(view: dict[str, Any]) -> list[str]:
    if "counts" not in view:
        return queue_row(view)
    from stoker.cli.output import sweep_text

    return sweep_text.queue_row(view)


def _params(view: dict[str, Any]) -> str:
    if not view.get("params"):
        return ""
    from stoker.cli.output.sweep_text import params

    return params(view["params"])


def queue_row(view: dict[str, Any]) -> list[str]:
    """Return one line of the queue."""
    short = str(view["state_code"])
    return [
        str((view.get("members") or view)["label"]),
        str(view.get("name") or ""),
        str(view.get("user") or ""),
        Cell(short, colour.STATE_COLOURS.get(short, "")),
        times.duration(view.get("elapsed") or 0),
        _left(view),
        gpus(view),
        place(view),
    ]


def _left(view: dict[str, Any]) -> str:
    """Return the time until its limit, or that a training job should still take if it has none."""
    left = view.get("time_left")
    if left is None and view.get("state") == "RUNNING":
        left = (view.get("training") or {}).get("remaining_seconds")
    return times.duration(left) or "-"


def epochs(training: dict[str, Any] | None) -> str:
    """Return `3/10`, `3` where the total is not known, `-` for a job that counts no epochs."""
    if not training:
        return "-"
    done, total = training["epochs_done"], training.get("epochs")
    if total:
        return f"{done}/{total}"
    return str(done) if done or training.get("listening") else "-"


def gpus(view: dict[str, Any]) -> str:
    """Return the GPUs of a job: `2`, `0.5`, `2x4` on two machines, `2 of 1..4` if elastic."""
    request = view.get("request") or {}
    asked = amount(request) or "-"
    held = view.get("devices") or {}
    if request.get("most_gpus") and held.get("gpu") and view["state"] != "PENDING":
        return f"{len(held['gpu'])} of {asked}"
    machines = request.get("machines") or 1
    return f"{machines}x{asked}" if machines > 1 and asked != "-" else asked


def amount(request: dict[str, Any]) -> str:
    """Return how many GPUs it asks for on each machine: `2`, `1..4`, `1..` for all there are."""
    gpus, most = str(request.get("gpus") or ""), request.get("most_gpus")
    if not most:
        return gpus
    return f"{gpus}..{most}" if int(most) < ALL_GPUS else f"{gpus}.."


def place(view: dict[str, Any]) -> str:
    """Return where a job runs, why it waits, or how it ended."""
    if view.get("result") is not None:
        return str(view.get("cause") or view["state"].lower())
    if view.get("node") and view["state"] != "PENDING":
        parts = view.get("parts") or [view]
        where = " ".join(_on(part["node"], part.get("devices") or {}) for part in parts)
        if not view.get("unreachable"):
            return where
        ago = times.relative(view.get("unreachable_since")).removesuffix(" ago")
        return f"{where} (unreachable{'' if ago == 'now' else f' for {ago}'})"
    if view.get("reason") == "NodeUnreachable" and view.get("reason_text"):
        return f"({view['reason_text']})"  # which machine is more than the word says
    return f"({view['reason']})" if view.get("reason") else ""


def _on(node: object, devices: dict[str, list[str]]) -> str:
    gpus = devices.get("gpu")
    return f"{node}:{','.join(gpus)}" if gpus else str(node)


def text(value: object) -> str:
    """Return a field as a person reads it."""
    if value is None:
        return ""
    if isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value):
        return ",".join(clean(item) for item in value)
    return fast_json.dumps(value) if isinstance(value, (dict, list, bool)) else clean(value)


def summary(counts: dict[str, int]) -> str:
    """Return `3 running, 12 pending, 1 failed`."""
    words = {"CONFIGURING": "starting", "SUSPENDED": "paused"}
    order = ("RUNNING", "CONFIGURING", "QUEUED", "COMPLETING", "SUSPENDED", "PENDING")
    names = [*order, *(name for name in counts if name not in order)]
    parts = [
        f"{counts[name]:,} {words.get(name, name.lower().replace('_', ' '))}"
        for name in names
        if counts.get(name)
    ]
    return ", ".join(parts) or counted(0, "job")
