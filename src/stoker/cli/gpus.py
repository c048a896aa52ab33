"""List GPUs with utilisation, memory, temperature, jobs and other processes."""

from __future__ import annotations

from stoker.cli import colour, output
from stoker.cli.options import WATCH, Args, Option, parse
from stoker.cli.table import Cell, Column, render, terminal_width
from stoker.client.client import connect
from stoker.client.errors import StokerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

USAGE = ("gpus [OPTIONS]",)
OPTIONS = (
    WATCH,
    Option("--no-header", None, "print no header line"),
    Option("--id", "IDS", "only these GPUs: 0,1 or gpu1/0; gpu1 for all of a node"),
    Option("-u/--show-user", None, "show users (always shown)", key="user"),
    Option("-c/--show-cmd", None, "show commands", key="command"),
    Option("-p/--show-pid", None, "show process ids", key="pid"),
)
STATES = {"free": "green", "busy": "cyan", "shared": "cyan", "foreign": "yellow",
          "drained": "magenta", "unreachable": "red", "unknown": "red"}  # fmt: skip
COLUMNS = (
    Column("GPU"),
    Column("MODEL", cut=True),
    Column("TEMP", right=True),
    Column("UTIL", right=True),
    Column("MEMORY", right=True),
    Column("STATE"),
    Column("FREE", right=True),
    Column("USED BY", cut=True),
)
BAR = "▏▎▍▌▋▊▉█"


def main(argv: list[str]) -> int:
    """Print the GPUs once, or again and again."""
    args = parse(OPTIONS, argv, verb="gpus")
    client = connect()
    if args.flag("watch"):
        from stoker.cli.watch import seconds, watch

        return watch(seconds(args) or 2.0, lambda: drawn(client.gpus(), args))
    reply = client.gpus()
    if args.flag("json"):
        output.emit({**reply, "gpus": asked_for(reply["gpus"], args.text("id"))})
        return 0
    lines = drawn(reply, args)
    if lines:
        print("\n".join(lines))
    if not reply["gpus"]:
        output.say(
            "stoker: this machine has no GPUs. To declare some: stoker daemon restart --gpus 0,1"
        )
    if reply.get("note"):
        output.say(f"stoker: {reply['note']}")
    return 0


def asked_for(gpus: list[dict[str, Any]], ids: str | None) -> list[dict[str, Any]]:
    """Return the GPUs named by id or index, all when none is named."""
    if ids is None:
        return gpus
    wanted = [word.strip() for word in ids.split(",") if word.strip()]
    found = [gpu for gpu in gpus if not _names(gpu).isdisjoint(wanted)]
    known = {name for gpu in found for name in _names(gpu)}
    missing = [word for word in wanted if word not in known]
    if missing:
        raise StokerError(f"There is no GPU {', '.join(missing)}.", 3, "not_found")
    return found


def _names(gpu: dict[str, Any]) -> set[str]:
    """Return what a GPU may be called: 0, gpu1/0, gpu1 for all of a machine."""
    ids, node = {str(gpu["id"]), str(gpu.get("index"))}, str(gpu["node"])
    return {*ids, *(f"{node}/{id}" for id in ids), node}


def drawn(reply: dict[str, Any], args: Args) -> list[str]:
    """Return the list as lines."""
    gpus = asked_for(reply["gpus"], args.text("id"))
    if not gpus:
        return []
    coloured, width = colour.wanted(), terminal_width()
    several = len({*(reply.get("machines") or ()), *(gpu["node"] for gpu in reply["gpus"])}) > 1
    rows = [_row(gpu, args, several=several, bars=width is not None) for gpu in gpus]
    header = not args.flag("no_header")
    return render(COLUMNS, rows, header=header, width=width, coloured=coloured)


def _row(gpu: dict[str, Any], args: Args, *, several: bool, bars: bool) -> list[str]:
    state = str(gpu["state"])
    used, total = gpu.get("memory_used"), gpu.get("memory")
    memory = f"{'?' if used is None else used} / {total} MiB" if total else "-"
    load = gpu.get("utilization")
    return [
        f"{gpu['node']}/{gpu['id']}" if several else str(gpu["id"]),
        str(gpu.get("model") or "-"),
        "-" if gpu.get("temperature") is None else Cell(f"{gpu['temperature']}°C", "red"),
        "-" if load is None else Cell(f"{bar(load) if bars else ''}{load:.0f} %", "green"),
        Cell(memory, "yellow" if total else ""),
        Cell(state, STATES.get(state, "")),
        str(gpu.get("free") or "-"),
        users(gpu, args),
    ]


def bar(percent: float) -> str:
    """Return five cells filled as far as a share goes."""
    eighths = round(max(0.0, min(100.0, percent)) / 100 * 40)
    full, part = divmod(eighths, 8)
    text = "█" * full + (BAR[part - 1] if part else "")
    return f"{text:<5} "


def users(gpu: dict[str, Any], args: Args) -> str:
    """Return who is on a GPU: our jobs, then strangers."""
    parts = []
    for job in gpu.get("jobs") or ():
        share = f" ({job['share']})" if job.get("share") not in (None, "1") else ""
        if gpu["state"] == "shared" and not share and job.get("memory"):
            share = f" ({job['memory']} MiB)"
        parts.append(
            f"{job['label']} {job.get('name') or ''} {job.get('user') or ''}".strip() + share
        )
    for process in gpu.get("foreign") or ():
        command = str(process.get("command") or "?")
        if not args.flag("command"):
            command = command.partition(" ")[0].rpartition("/")[2]
        pid = f"/{process['pid']}" if args.flag("pid") else ""
        memory = f" ({process['memory']} MiB)" if process.get("memory") else ""
        parts.append(f"{process.get('user') or '?'}:{command}{pid}{memory}")
    return ", ".join(parts)
