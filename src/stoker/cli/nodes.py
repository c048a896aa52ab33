"""Machines: what is free on them, and which belong to us."""

from __future__ import annotations

from stoker.cli import output, table, times
from stoker.cli.options import VERBOSE, WATCH, Args, Option, parse
from stoker.cli.table import Cell, Column
from stoker.client.client import Client, connect
from stoker.client.errors import StokerError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

USAGE = (
    "nodes [OPTIONS]",
    "nodes add NAME ssh://USER@HOST:PORT [--key FILE] [--shared]",
    "nodes add FILE.yaml ...",
    "nodes remove NAME ... [--force]",
)
OPTIONS = (
    Option("--key", "FILE", "add: the key to log in with, if ssh does not know it"),
    Option("--shared", None, "add: it has our files under the same names; send nothing"),
    Option("--force", None, "remove: give up the jobs that run there"),
    WATCH,
    Option("--no-header", None, "no headings"),
    VERBOSE,
)
STATES = {"up": "green", "drained": "magenta", "unreachable": "red", "connecting": "yellow"}


def main(argv: list[str]) -> int:
    """Print the machines, add some or remove some."""
    args = parse(OPTIONS, argv, verb="nodes")
    verb, words = (args.words[0], args.words[1:]) if args.words else ("", [])
    if verb == "add":
        return _add(connect(), words, args)
    if verb in ("remove", "rm"):
        return _remove(connect(), words, args)
    if verb not in ("", "list"):
        raise UsageError(f"nodes has no '{verb}'; write add, remove or nothing.")
    client = connect()
    header, verbose = not args.flag("no_header"), args.flag("verbose")

    def drawn() -> list[str]:
        from stoker.cli.colour import wanted

        columns, rows = table_of(client.nodes()["nodes"], verbose)
        width = table.terminal_width()
        return table.render(columns, rows, header=header, width=width, coloured=wanted())

    if args.flag("watch"):
        from stoker.cli.watch import seconds, watch

        return watch(seconds(args) or 2.0, drawn)
    if args.flag("json"):
        output.emit(client.nodes())
    else:
        print("\n".join(drawn()))
    return 0


def _add(client: Client, words: list[str], args: Args) -> int:
    from stoker.client.machines import Known, read_machine

    files = [word for word in words if word.endswith((".yaml", ".yml"))]
    if files and len(files) == len(words):
        machines: list[Known] = [read_machine(path) for path in files]
    elif len(words) == 2:
        machines = [(words[0], words[1], args.text("key"))]
    else:
        raise UsageError("Write stoker nodes add NAME ssh://me@host:22, or the name of a file.")
    names = []
    for name, address, key in machines:
        more = {"key": _absolute(key)} if key else {}
        client.add_node(name, address, shared=args.flag("shared"), **more)
        names.append(name)
    found = client.look_at_nodes(names)["nodes"]
    views = [view for view in found if view["name"] in names]
    if args.flag("json"):
        output.emit({"nodes": views})
    else:
        for view in views:
            if view["state"] == "up":
                print(f"{view['name']} is up: {_inventory(view)}")
    silent = [view for view in views if view["state"] != "up"]
    if silent:
        told = "; ".join(f"{view['name']}: {view['why']}" for view in silent)
        raise StokerError(
            f"Added, but not reached yet ({told}). It is tried again and again; see stoker nodes."
        )
    return 0


def _absolute(path: str) -> str:
    import os

    return path if path.startswith("~") else os.path.abspath(path)


def _inventory(view: dict[str, Any]) -> str:
    """Say what a machine has in a few words."""
    seen = view["measured"] or {}
    models: dict[str, int] = {}
    for gpu in seen.get("gpus", []):
        models[gpu["model"]] = models.get(gpu["model"], 0) + 1
    parts = [f"{count} x {model}" for model, count in models.items()] or ["no GPU"]
    cores = seen.get("cores", 0)
    parts.append(f"{cores} core{'s' * (cores != 1)}")
    parts.append(f"{seen.get('memory_available', 0) / 1024:.0f} GiB of memory free")
    text = ", ".join(parts)
    if "bash" not in seen.get("tools", ()):
        text += "; it has no bash, so lines run under sh, without ~/.bashrc"
    return text


def _remove(client: Client, names: list[str], args: Args) -> int:
    if not names:
        raise UsageError("Write stoker nodes remove NAME.")
    gone = [client.remove_node(name, force=args.flag("force")) for name in names]
    if args.flag("json"):
        output.emit({"removed": gone})
    return 0


def table_of(nodes: list[dict[str, Any]], verbose: bool) -> tuple[list[Column], list[list[str]]]:
    """Return columns and rows: one column per kind of resource."""
    kinds = list(dict.fromkeys(kind for node in nodes for kind in node.get("resources") or {}))
    afar = any(node.get("address") for node in nodes)
    columns = [Column("NODE"), Column("STATE")]
    columns += [Column(f"{kind.upper()} FREE", right=True) for kind in kinds]
    columns += [Column("JOBS", right=True), Column("SINCE")]
    if afar:
        columns += [Column("ADDRESS"), Column("NOTE")]
    rows = []
    for node in nodes:
        held = node.get("resources") or {}
        amounts = [
            f"{held[kind]['free']}/{held[kind]['total']}" if kind in held else "-" for kind in kinds
        ]
        state = str(node["state"])
        since = times.moment(node.get("since"), verbose)
        row = [
            str(node["name"]),
            Cell(state, STATES.get(state, "")),
            *amounts,
            str(node.get("jobs", 0)),
            since,
        ]
        if afar:
            row += [str(node.get("address") or "here"), output.clean(str(node.get("why") or ""))]
        rows.append(row)
    return columns, rows
