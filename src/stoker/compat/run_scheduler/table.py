"""Jobs of run-scheduler as a table, or with all options."""

from __future__ import annotations

import time

from stoker.cli.output import clean, colour, times
from stoker.cli.output.job_table import epochs_text
from stoker.cli.output.table import Cell, Column, shorten, terminal_width
from stoker.cli.output.table import write as write_table
from stoker.compat.run_scheduler.jobs import full_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STATES = {
    "PENDING": "pending", "CONFIGURING": "starting", "QUEUED": "queued", "RUNNING": "running",
    "SUSPENDED": "paused", "COMPLETING": "ending", "COMPLETED": "done", "FAILED": "failed",
    "CANCELLED": "cancelled", "TIMEOUT": "timeout", "OUT_OF_MEMORY": "out of memory",
    "NODE_FAIL": "node failed", "DEADLINE": "deadline",
}  # fmt: skip
COLOURS = {"pending": "yellow", "preempted": "yellow", "running": "green", "failed": "red",
           "out of memory": "red", "node failed": "red", "timeout": "red",
           "deadline": "red"}  # fmt: skip
COLUMNS = (
    Column("ID"),
    Column("NAME", cut=True),
    Column("STATE"),
    Column("EPOCHS", right=True),
    Column("GPUS"),
    Column("MEMORY", right=True),
    Column("SENT", right=True),
    Column("TIME", right=True),
    Column("LEFT", right=True),
)

MAX_NAME_LENGTH = 40
"""Longer names are cut in the table."""


def write(views: list[dict[str, Any]]) -> None:
    """Print a table with one line per job."""
    brief = terminal_width() is not None
    write_table(COLUMNS, [_row(view, brief) for view in views])


def state(view: dict[str, Any]) -> str:
    """Return the state of a job as text."""
    training = view["training"]
    word = STATES[view["state"]]
    if word == "running" and training["stopping"]:
        return "stopping"
    return "preempted" if word == "pending" and training["preemptions"] else word


def _row(view: dict[str, Any], brief: bool) -> list[str]:
    word = state(view)
    left = view["training"]["remaining_seconds"] if view.get("result") is None else None
    return [
        full_id(view),
        shorten(clean(view["name"]), MAX_NAME_LENGTH),
        Cell(word, COLOURS.get(word, "")),
        epochs_text(view["training"]),
        ",".join((view.get("devices") or {}).get("gpu") or ()) or "-",
        memory(view["training"]),
        _submit_time(view["submitted_at"], brief),
        _run_time(view) or "-",
        (times.approximate(left) if brief else times.duration(left)) if left is not None else "-",
    ]


def _run_time(view: dict[str, Any]) -> str:
    """Return the run time of all attempts."""
    return times.duration(view["training"]["ran_seconds"] or view.get("elapsed"))


def memory(training: dict[str, Any]) -> str:
    """Return `6G/3.1G`: reserved memory and measured maximum."""
    reserved, peak = training["memory_reserved"], training["memory_peak"]
    if reserved is None and peak is None:
        return "-"
    return "/".join(_size(size) if size is not None else "-" for size in (reserved, peak))


def _size(mebi: int) -> str:
    return f"{mebi / 1024:.1f}G".replace(".0G", "G") if mebi >= 1024 else f"{mebi}M"


def _submit_time(at: str, brief: bool) -> str:
    seconds = times.epoch(at)
    if not brief or seconds is None:
        return times.absolute(at)
    recent = time.time() - seconds < 20 * 3600
    return time.strftime("%H:%M" if recent else "%b %d", time.localtime(seconds))


def extended(view: dict[str, Any]) -> list[str]:
    """Return all options and the state of a job, one per line."""
    head = f"{full_id(view)} {clean(view['name'])}"
    lines = [colour.paint(head, "bold") if colour.is_enabled() else head]
    return lines + [f"  {key:<20} {clean(value)}" for key, value in _detail_rows(view)]


def _detail_rows(view: dict[str, Any]) -> list[tuple[str, object]]:
    training, options = view["training"], _stored_options(view)
    container = view.get("container") or {}
    ports = ",".join(f"{outside}:{inside}" for outside, inside in container.get("ports") or ())
    expected = training["expected_seconds"]
    gpu_memory = (view.get("request") or {}).get("gpu_memory")
    left, word = training["remaining_seconds"], state(view)
    why = view.get("reason_text") or view.get("cause")
    on_gpus = (view.get("request") or {}).get("gpus")
    single, shares = not training["elastic"], training["shares"]
    rows = [
        ("state", f"{word}: {why}" if why and why != word else word),
        ("image_name", container.get("image")),
        ("script_path", options.get("--script_path")),
        ("custom_dir", options.get("--custom_dir")),
        ("snapshots_dir", training["snapshots"]),
        ("batch_size", training["batch_size"]),
        ("training_set_size", training["training_set_size"]),
        ("max_epochs", training["epochs"]),
        ("is_single_gpu", str(single).lower() if on_gpus else options.get("--is_single_gpu")),
        (
            "disable_gpu_sharing",
            str(not shares).lower() if on_gpus else options.get("--disable_gpu_sharing"),
        ),
        ("estimated_memory", gpu_memory),
        ("port_mapping", ports),
        ("est_nhours", f"{expected / 3600:g}" if expected else None),
        ("user", view["user"]),
        ("priority", view["priority"]),
        ("submitted", times.absolute(view["submitted_at"])),
        ("started", times.absolute(view["started_at"])),
        ("ended", times.absolute(view["ended_at"])),
        ("running time", _run_time(view)),
        ("time left", times.duration(left) if view.get("result") is None else None),
        ("epochs done", training["epochs_done"]),
        ("preempted", training["preemptions"] or None),
        ("gpus", ",".join((view.get("devices") or {}).get("gpu") or ())),
        ("memory reserved", training["memory_reserved"]),
        ("memory measured", training["memory_peak"]),
        ("root_dir", training["checkpoints"]),
        ("log", view["log"]),
    ]
    return [(key, value) for key, value in rows if value not in (None, "")]


def _stored_options(view: dict[str, Any]) -> dict[str, str]:
    """Return the options as given, which are stored in the comment."""
    from shlex import split

    try:
        words = split(str(view.get("comment") or ""))
    except ValueError:
        return {}  # the comment was edited
    return dict(zip(words[::2], words[1::2], strict=False))
