"""The job table of `queue`, and fields of a job as text."""

from __future__ import annotations

import time

from stoker.cli.output import clean, colour, counted, times
from stoker.cli.output.table import Cell, Column, insert_column
from stoker.client import fast_json
from stoker.wire import JsonObject

QUEUE_COLUMNS = (
    Column("JOBID", right=True),
    Column("NAME", cut=True),
    Column("USER", cut=True, drop=6),
    Column("ST"),
    Column("TIME", right=True),
    Column("LEFT", right=True, drop=5),
    Column("GPUS", right=True),
    Column("NODE/REASON", whole=3),
)
COMMAND_COLUMN = Column("COMMAND", spare=24)
MIN_RANGE_WIDTH = 120
"""Narrower terminals show estimated times without their ranges."""
UNBOUNDED_GPUS = 64
"""A maximum of this many GPUs means no maximum."""
NAME_COLUMN = 1
"""Index of the column; parameters of trials are inserted after it."""
USER_COLUMN = 2
STALE_SECONDS = 60.0
"""Age from which the age of a forecast is shown."""
GPUS_COLUMN = 6
"""Index of the column; epochs are inserted before it."""


def queue_table(
    views: list[JsonObject], sweeps: list[JsonObject], *, verbose: bool, width: int | None
) -> tuple[list[Column], list[list[str]]]:
    """Return columns and rows of the queue; with estimated times if any are known."""
    columns = list(QUEUE_COLUMNS)
    if sweeps:
        views = _with_sweeps(views, sweeps)
    if len({view.get("user") for view in views}) > 1:
        columns[USER_COLUMN] = Column("USER", cut=True, drop=3)
    rows = [_row(view) for view in views]
    if any(view.get("params") for view in views):
        params = map(_params, views)
        insert_column(columns, rows, NAME_COLUMN + 1, Column("PARAMS", cut=True), params)
    epochs = [epochs_text(view.get("training")) for view in views]
    if any(text != "-" for text in epochs):
        at = len(columns) - len(QUEUE_COLUMNS) + GPUS_COLUMN
        insert_column(columns, rows, at, Column("EPOCHS", right=True, drop=4), epochs)
    if any(_is_estimated(view) for view in views):
        from stoker.cli.output.estimates import estimate_cell

        columns[-1:-1] = (
            Column("START", drop=1), Column(_eta_heading(views), drop=2),
        )  # fmt: skip
        for row, view in zip(rows, views, strict=True):
            forecast = view.get("foreseen") or {}
            start = estimate_cell(forecast.get("start"), verbose=verbose, ranged=False)
            end = estimate_cell(
                forecast.get("end"),
                verbose=verbose,
                ranged=width is None or width >= MIN_RANGE_WIDTH,
            )
            row[-1:-1] = start or ("-" if view["state"] == "PENDING" else ""), end or "-"
    commands = (str(view.get("command") or "") for view in views)
    insert_column(columns, rows, len(columns), COMMAND_COLUMN, commands)
    return columns, rows


def _is_estimated(view: JsonObject) -> bool:
    forecast = view.get("foreseen") or {}
    return bool(forecast.get("start") or forecast.get("end"))


def _eta_heading(views: list[JsonObject]) -> str:
    """Return the heading, with the age of the forecast if it is stale."""
    at = next(view["foreseen"].get("at") for view in views if view.get("foreseen"))
    age = time.time() - (times.epoch(at) or time.time())
    return f"ETA ({times.approximate(age)} old)" if age >= STALE_SECONDS else "ETA"


def _with_sweeps(views: list[JsonObject], sweeps: list[JsonObject]) -> list[JsonObject]:
    """Return jobs and sweeps in one list: running ones before pending ones."""
    running = [sweep for sweep in sweeps if sweep["state"] == "RUNNING"]
    pending = [sweep for sweep in sweeps if sweep["state"] != "RUNNING"]
    first = next(
        (location for location, view in enumerate(views) if view["state"] == "PENDING"), len(views)
    )
    return [*running, *views[:first], *pending, *views[first:]]


def _row(view: JsonObject) -> list[str]:
    if "counts" not in view:
        return queue_row(view)
    from stoker.cli.output import sweep_text

    return sweep_text.queue_row(view)


def _params(view: JsonObject) -> str:
    if not view.get("params"):
        return ""
    from stoker.cli.output.sweep_text import params_text

    return params_text(view["params"])


def queue_row(view: JsonObject) -> list[str]:
    """Return the cells of one job in the columns of the queue."""
    short = str(view["state_code"])
    return [
        str((view.get("members") or view)["label"]),
        str(view.get("name") or ""),
        str(view.get("user") or ""),
        Cell(short, colour.STATE_COLOURS.get(short, "")),
        times.duration(view.get("elapsed") or 0),
        _time_left(view),
        gpus_text(view),
        location(view),
    ]


def _time_left(view: JsonObject) -> str:
    """Return the time until the limit, or else until a training job is expected to end."""
    left = view.get("time_left")
    if left is None and view.get("state") == "RUNNING":
        left = (view.get("training") or {}).get("remaining_seconds")
    return times.duration(left) or "-"


def epochs_text(training: JsonObject | None) -> str:
    """Return `3/10`, `3` if the total is unknown, `-` for a job without epochs."""
    if not training:
        return "-"
    done, total = training["epochs_done"], training.get("epochs")
    if total:
        return f"{done}/{total}"
    return str(done) if done or training.get("listening") else "-"


def gpus_text(view: JsonObject) -> str:
    """Return the GPUs of a job: `2`, `0.5`, `2x4` on two machines, `2 of 1..4` if elastic."""
    request = view.get("request") or {}
    requested = gpu_range(request) or "-"
    held = view.get("devices") or {}
    if request.get("most_gpus") and held.get("gpu") and view["state"] != "PENDING":
        return f"{len(held['gpu'])} of {requested}"
    machines = request.get("machines") or 1
    return f"{machines}x{requested}" if machines > 1 and requested != "-" else requested


def gpu_range(request: JsonObject) -> str:
    """Return the requested GPUs per node: `2`, `1..4`, `1..` without a maximum."""
    min_gpus, max_gpus = str(request.get("gpus") or ""), request.get("most_gpus")
    if not max_gpus:
        return min_gpus
    return f"{min_gpus}..{max_gpus}" if int(max_gpus) < UNBOUNDED_GPUS else f"{min_gpus}.."


def location(view: JsonObject) -> str:
    """Return where a job runs, why it is pending, or how it ended."""
    if view.get("result") is not None:
        return str(view.get("cause") or view["state"].lower())
    if view.get("node") and view["state"] != "PENDING":
        parts = view.get("parts") or [view]
        where = " ".join(_node_devices(part) for part in parts)
        if view.get("alarms"):
            from stoker.cli.output.alarm_text import short_alarm

            where += f" ({short_alarm(view['alarms'])})"
        if not view.get("unreachable"):
            return where
        ago = times.relative(view.get("unreachable_since")).removesuffix(" ago")
        return f"{where} (unreachable{'' if ago == 'now' else f' for {ago}'})"
    if view.get("reason") == "NodeUnreachable" and view.get("reason_text"):
        return f"({view['reason_text']})"  # it names the node
    return f"({view['reason']})" if view.get("reason") else ""


def _node_devices(part: JsonObject) -> str:
    """Return `node:0,1`, or `cluster/host:0,1` if a cluster chose the host."""
    place = "/".join((part["node"], *(part.get("hosts") or ())))
    ids = (part.get("devices") or {}).get("gpu")
    return f"{place}:{','.join(ids)}" if ids else place


def field_text(value: object) -> str:
    """Return a field as text: lists joined by commas, objects as JSON."""
    if value is None:
        return ""
    if isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value):
        return ",".join(clean(item) for item in value)
    return fast_json.dumps(value) if isinstance(value, (dict, list, bool)) else clean(value)


def counts_text(counts: dict[str, int]) -> str:
    """Return `3 running, 12 pending, 1 failed`."""
    state_names = {"CONFIGURING": "starting", "SUSPENDED": "paused"}
    order = ("RUNNING", "CONFIGURING", "QUEUED", "COMPLETING", "SUSPENDED", "PENDING")
    names = [*order, *(name for name in counts if name not in order)]
    parts = [
        f"{counts[name]:,} {state_names.get(name, name.lower().replace('_', ' '))}"
        for name in names
        if counts.get(name)
    ]
    return ", ".join(parts) or counted(0, "job")
