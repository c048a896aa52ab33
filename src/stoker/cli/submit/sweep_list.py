"""List sweeps: those that go on, or all of them."""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import Option, parse
from stoker.cli.output import table
from stoker.cli.output.estimates import estimate_cell
from stoker.cli.output.sweep_text import age_text, best_text, progress_text, state_cell
from stoker.cli.output.table import Column
from stoker.cli.session import connect_without_start, has_state
from stoker.client.errors import UsageError

USAGE = ("sweep list [--all]",)
OPTIONS = (
    Option("-a/--all", None, "also finished sweeps"),
    Option("--no-header", None, "print no header line"),
)
COLUMNS = (
    Column("SWEEP", right=True),
    Column("NAME", cut=True),
    Column("USER", cut=True),
    Column("ST"),
    Column("METHOD"),
    Column("TIME", right=True),
    Column("ETA"),
    Column("TRIALS", cut=True),
    Column("BEST", cut=True),
)


def main(argv: list[str]) -> int:
    """Print one line per sweep."""
    args = parse(OPTIONS, argv, verb="sweep")
    if args.words:
        raise UsageError(
            f"stoker sweep list takes no names; try: stoker sweep show {args.words[0]}"
        )
    sweeps = connect_without_start().sweeps(all=args.flag("all"))["sweeps"] if has_state() else []
    if args.flag("json"):
        return output.emit({"sweeps": sweeps})
    rows = [
        [
            str(sweep["label"]), str(sweep["name"]), str(sweep["user"]), state_cell(sweep),
            str(sweep["method"]), age_text(sweep),
            estimate_cell((sweep.get("foreseen") or {}).get("end")) or "-",
            progress_text(sweep), best_text(sweep),
        ]
        for sweep in sweeps
    ]  # fmt: skip
    if rows:
        table.write(COLUMNS, rows, header=not args.flag("no_header"))
    elif args.flag("all"):
        output.say("stoker: there are no sweeps")
    else:
        output.say("stoker: no unfinished sweeps; finished ones: stoker sweep list --all")
    return 0
