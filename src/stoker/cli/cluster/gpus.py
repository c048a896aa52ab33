"""List GPUs with utilisation, memory, temperature, jobs and other processes."""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import WATCH, Args, Option, parse
from stoker.cli.output import sizes, table
from stoker.cli.output.table import Cell, Column
from stoker.cli.session import connect_without_start
from stoker.client.errors import NotFound
from stoker.wire import JsonObject

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
          "drained": "magenta", "unreachable": "red", "unavailable": "red"}  # fmt: skip
COLUMNS = (
    Column("GPU"),
    Column("MODEL", cut=True),
    Column("TEMP", right=True, drop=2),
    Column("UTIL", right=True, drop=1),
    Column("MEMORY", right=True),
    Column("STATE"),
    Column("FREE", right=True),
    Column("USED BY", cut=True),
)
BAR = "▏▎▍▌▋▊▉█"
UNINFORMATIVE_PARTS = ("NVIDIA", "AMD", "GeForce", "Tesla", "Instinct", "SXM", "PCI", "HBM", "MIG")
"""Parts of model names that do not distinguish GPUs."""
OTHER_DAEMON = "the stoker of "
"""Prefix of `foreign_process` if another user's daemon has locked the GPU."""


def main(argv: list[str]) -> int:
    """Print the GPUs once, or repeatedly with --watch."""
    args = parse(OPTIONS, argv, verb="gpus")
    client = connect_without_start()
    if args.flag("watch"):
        from stoker.cli.session.live import watch

        return watch(args, client.gpus, lambda reply, _: gpu_lines(reply, args))
    reply = client.gpus()
    if args.flag("json"):
        return output.emit({**reply, "gpus": select_gpus(reply["gpus"], args.text("id"))})
    lines = gpu_lines(reply, args)
    if lines:
        print("\n".join(lines))
    if not reply["gpus"]:
        output.say("stoker: no GPUs found here. To declare GPUs: stoker daemon restart --gpus 0,1")
    if reply.get("note"):
        output.say(f"stoker: {reply['note']}")
    return 0


def select_gpus(gpus: list[JsonObject], ids: str | None) -> list[JsonObject]:
    """Return the GPUs with these ids or indexes; by default all."""
    if ids is None:
        return gpus
    names = [name.strip() for name in ids.split(",") if name.strip()]
    selected = [gpu for gpu in gpus if not _names(gpu).isdisjoint(names)]
    known = {name for gpu in selected for name in _names(gpu)}
    missing = [name for name in names if name not in known]
    if missing:
        raise NotFound(f"There is no GPU {', '.join(missing)}.")
    return selected


def _names(gpu: JsonObject) -> set[str]:
    """Return the names of a GPU: 0, gpu1/0, and gpu1 for all of a node."""
    ids, node = {str(gpu["id"]), str(gpu.get("index"))}, str(gpu["node"])
    return {*ids, *(f"{node}/{id}" for id in ids), node}


def gpu_lines(reply: JsonObject, args: Args) -> list[str]:
    """Return the lines of the table."""
    gpus = select_gpus(reply["gpus"], args.text("id"))
    if not gpus:
        return []
    width = table.terminal_width()
    has_nodes = len({*(reply.get("machines") or ()), *(gpu["node"] for gpu in reply["gpus"])}) > 1
    header = not args.flag("no_header")
    rows = [_row(gpu, args, has_nodes, short=False, bars=width is not None) for gpu in gpus]
    full_lines = table.render(COLUMNS, rows, header=header, coloured=False)
    if width is not None and max(map(table.display_width, full_lines)) > width:
        rows = [_row(gpu, args, has_nodes, short=True, bars=True) for gpu in gpus]
    return table.render(COLUMNS, rows, header=header, width=width)


def _row(gpu: JsonObject, args: Args, has_nodes: bool, *, short: bool, bars: bool) -> list[str]:
    """Return one row; with `short`, models and sizes are shortened in favour of users."""
    state, total, load = str(gpu["state"]), gpu.get("memory"), gpu.get("utilization")
    model = str(gpu.get("model") or "-")
    return [
        f"{gpu['node']}/{gpu['id']}" if has_nodes else str(gpu["id"]),
        short_model(model) if short else model,
        "-" if gpu.get("temperature") is None else Cell(f"{gpu['temperature']}°C", "red"),
        "-" if load is None else Cell(f"{bar(load) if bars and not short else ''}{load:.0f}%",
                                      "green"),
        Cell(_memory(gpu.get("memory_used"), total, short), "yellow" if total else ""),
        Cell(state, STATES.get(state, "")),
        str(gpu.get("free") or "-"),
        users(gpu, args, short),
    ]  # fmt: skip


def _memory(used: int | None, total: int | None, short: bool) -> str:
    """Return `39000/81920 MiB`, or short `38/80G`."""
    if not total:
        return "-"
    if not short:
        return f"{'?' if used is None else used}/{total} MiB"
    taken = "?" if used is None else f"{used / sizes.GIB:.0f}"
    return f"{taken}/{sizes.rounded(total)}"


def short_model(name: str) -> str:
    """Return `A100-80G` for NVIDIA A100-SXM4-80GB: no vendor, no form factor."""
    words = [
        word for word in name.replace("-", " ").split() if not word.startswith(UNINFORMATIVE_PARTS)
    ]
    words = [word[:-1] if word.endswith("GB") and word[0].isdigit() else word for word in words]
    return "-".join(words) or name


def bar(percent: float) -> str:
    """Return a bar of five cells."""
    eighths = round(max(0.0, min(100.0, percent)) / 100 * 40)
    full, part = divmod(eighths, 8)
    text = "█" * full + (BAR[part - 1] if part else "")
    return f"{text:<5} "


def owners(gpu: JsonObject) -> str:
    """Return the names of a GPU's users; `foreign_process` if they are unknown."""
    jobs = [str(job.get("user") or "?") for job in gpu.get("jobs") or ()]
    processes = [str(process.get("user") or "?") for process in gpu.get("foreign") or ()]
    foreign = str(gpu.get("foreign_process") or "")
    daemon = [foreign.removeprefix(OTHER_DAEMON)] if foreign.startswith(OTHER_DAEMON) else []
    return ", ".join(dict.fromkeys([*jobs, *daemon, *processes])) or foreign.partition(" (")[0]


def users(gpu: JsonObject, args: Args, short: bool = False) -> str:
    """Return the users of a GPU: our jobs, then other daemons and processes."""
    jobs, processes = gpu.get("jobs") or [], gpu.get("foreign") or []
    names = not short or len(jobs) + len(processes) == 1
    parts = []
    for job in jobs:
        share = f" ({job['share']})" if job.get("share") not in (None, "1") else ""
        if gpu["state"] == "shared" and not share and job.get("memory"):
            share = f" ({sizes.rounded(job['memory'])})"
        name = f" {job['name']}" if names and job.get("name") else ""
        parts.append(f"{job.get('user') or '?'}: job {job['label']}{name}{share}")
    foreign = str(gpu.get("foreign_process") or "")
    if foreign.startswith(OTHER_DAEMON):
        parts.append(f"{foreign.removeprefix(OTHER_DAEMON)}: stoker")
    for process in processes:
        command = str(process.get("command") or "?")
        if not args.flag("command"):
            command = command.partition(" ")[0].rpartition("/")[2]
        pid = f"/{process['pid']}" if args.flag("pid") else ""
        memory = f" ({sizes.rounded(process['memory'])})" if process.get("memory") else ""
        parts.append(f"{process.get('user') or '?'}: {command}{pid}{memory}")
    return ", ".join(parts) or foreign
