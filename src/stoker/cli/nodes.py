"""Machines and what is free on them."""

from __future__ import annotations

from stoker.cli import output, table, times
from stoker.cli.options import VERBOSE, WATCH, Option, parse
from stoker.cli.table import Cell, Column
from stoker.client.client import connect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

USAGE = ("nodes [OPTIONS]",)
OPTIONS = (WATCH, Option("--no-header", None, "no headings"), VERBOSE)
STATES = {"up": "green", "drained": "magenta"}


def main(argv: list[str]) -> int:
    """Print the machines."""
    args = parse(OPTIONS, argv, verb="nodes")
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


def table_of(nodes: list[dict[str, Any]], verbose: bool) -> tuple[list[Column], list[list[str]]]:
    """Return columns and rows: one column per kind of resource."""
    kinds = list(dict.fromkeys(kind for node in nodes for kind in node.get("resources") or {}))
    columns = [Column("NODE"), Column("STATE")]
    columns += [Column(f"{kind.upper()} FREE", right=True) for kind in kinds]
    columns += [Column("JOBS", right=True), Column("SINCE")]
    rows = []
    for node in nodes:
        held = node.get("resources") or {}
        amounts = [
            f"{held[kind]['free']}/{held[kind]['total']}" if kind in held else "-" for kind in kinds
        ]
        state = str(node["state"])
        since = times.moment(node.get("since"), verbose)
        rows.append(
            [
                str(node["name"]),
                Cell(state, STATES.get(state, "")),
                *amounts,
                str(node.get("jobs", 0)),
                since,
            ]
        )
    return columns, rows
