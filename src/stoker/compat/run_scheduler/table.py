"""Jobs of run-scheduler as a table, or each with all it was submitted with."""

from __future__ import annotations

import time

from stoker.cli.output import clean, colour, times
from stoker.cli.output.job_table import epochs_text
from stoker.cli.output.table import Cell, Column, shorten, terminal_width
from stoker.cli.output.table import write as write_table
from stoker.compat.run_scheduler.jobs import unique

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

LONGEST_NAME = 40
"""A name may have 200 letters; a line should not."""


def write(views: list[dict[str, Any]]) -> None:
    """Print a table, one line for each job."""
    brief = terminal_width() is not None
    write_table(COLUMNS, [_row(view, brief) for view in views])


def state(view: dict[str, Any]) -> str:
    """Return how a job stands, in a word."""
    training = view["training"]
    word = STATES[view["state"]]
    if word == "running" and training["stopping"]:
        return "stopping"
    return "preempted" if word == "pending" and training["preemptions"] else word


def _row(view: dict[str, Any], brief: bool) -> list[str]:
    word = state(view)
    left = view["training"]["remaining_seconds"] if view.get("result") is None else None
    return [
        unique(view),
        shorten(clean(view["name"]), LONGEST_NAME),
        Cell(word, COLOURS.get(word, "")),
        epochs_text(view["training"]),
        ",".join((view.get("devices") or {}).get("gpu") or ()) or "-",
        memory(view["training"]),
        _sent(view["submitted_at"], brief),
        _ran(view) or "-",
        (times.approximate(left) if brief else times.duration(left)) if left is not None else "-",
    ]


def _ran(view: dict[str, Any]) -> str:
    """Return how long it has run, in all its attempts."""
    return times.duration(view["training"]["ran_seconds"] or view.get("elapsed"))


def memory(training: dict[str, Any]) -> str:
    """Return `6G/3.1G`: what is set aside, and the most that was seen."""
    reserved, peak = training["memory_reserved"], training["memory_peak"]
    if reserved is None and peak is None:
        return "-"
    return "/".join(_size(each) if each is not None else "-" for each in (reserved, peak))


def _size(mebi: int) -> str:
    return f"{mebi / 1024:.1f}G".replace(".0G", "G") if mebi >= 1024 else f"{mebi}M"


def _sent(at: str, brief: bool) -> str:
    seconds = times.epoch(at)
    if not brief or seconds is None:
        return times.absolute(at)
    recent = time.time() - seconds < 20 * 3600
    return time.strftime("%H:%M" if recent else "%b %d", time.localtime(seconds))


def extended(view: dict[str, Any]) -> list[str]:
    """Return all that a job was submitted with and how it stands, a fact on each line."""
    head = f"{unique(view)} {clean(view['name'])}"
    lines = [colour.paint(head, "bold") if colour.is_enabled() else head]
    return lines + [f"  {key:<20} {clean(value)}" for key, value in _facts(view)]


def _facts(view: dict[str, Any]) -> list[tuple[str, object]]:
    training, typed = view["training"], _typed(view)
    container = view.get("container") or {}
    ports = ",".join(f"{outside}:{inside}" for outside, inside in container.get("ports") or ())
    expected = training["expected_seconds"]
    asked = (view.get("request") or {}).get("gpu_memory")
    left, word = training["remaining_seconds"], state(view)
    why = view.get("reason_text") or view.get("cause")
    on_gpus = (view.get("request") or {}).get("gpus")
    single, shares = not training["elastic"], training["shares"]
    found = [
        ("state", f"{word}: {why}" if why and why != word else word),
        ("image_name", container.get("image")),
        ("script_path", typed.get("--script_path")),
        ("custom_dir", typed.get("--custom_dir")),
        ("snapshots_dir", training["snapshots"]),
        ("batch_size", training["batch_size"]),
        ("training_set_size", training["training_set_size"]),
        ("max_epochs", training["epochs"]),
        ("is_single_gpu", str(single).lower() if on_gpus else typed.get("--is_single_gpu")),
        (
            "disable_gpu_sharing",
            str(not shares).lower() if on_gpus else typed.get("--disable_gpu_sharing"),
        ),
        ("estimated_memory", asked),
        ("port_mapping", ports),
        ("est_nhours", f"{expected / 3600:g}" if expected else None),
        ("user", view["user"]),
        ("priority", view["priority"]),
        ("submitted", times.absolute(view["submitted_at"])),
        ("started", times.absolute(view["started_at"])),
        ("ended", times.absolute(view["ended_at"])),
        ("running time", _ran(view)),
        ("time left", times.duration(left) if view.get("result") is None else None),
        ("epochs done", training["epochs_done"]),
        ("preempted", training["preemptions"] or None),
        ("gpus", ",".join((view.get("devices") or {}).get("gpu") or ())),
        ("memory reserved", training["memory_reserved"]),
        ("memory measured", training["memory_peak"]),
        ("root_dir", training["checkpoints"]),
        ("log", view["log"]),
    ]
    return [(key, value) for key, value in found if value not in (None, "")]


def _typed(view: dict[str, Any]) -> dict[str, str]:
    """Return what was typed, which the job keeps as a note."""
    from shlex import split

    try:
        words = split(str(view.get("comment") or ""))
    except ValueError:
        return {}  # the note was edited
    return dict(zip(words[::2], words[1::2], strict=False))
