"""Change how a sweep goes on: how many trials run at a time, how urgent they are."""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import Args, Option, parse
from stoker.cli.output.sweep_text import progress_text
from stoker.cli.session import connect_existing
from stoker.client.errors import UsageError

USAGE = ("sweep edit SWEEP [--max-running N] [--priority N]",)
OPTIONS = (
    Option("--max-running", "N", "maximum number of running trials; 0 for no limit"),
    Option("--priority", "N", "priority; higher starts first"),
)


def main(argv: list[str]) -> int:
    """Apply the options to one sweep."""
    args = parse(OPTIONS, argv, verb="sweep")
    if len(args.words) != 1:
        raise UsageError("No sweep given. For example: stoker sweep edit 17 --max-running 4")
    changes: dict[str, object] = {}
    if args.text("max_running") is not None:
        changes["max_running"] = args.count("max_running")
    if args.text("priority") is not None:
        changes["priority"] = _priority(args)
    if not changes:
        raise UsageError("What should change? Give --max-running N or --priority N.")
    view = connect_existing().change_sweep(args.words[0], **changes)
    maximum = view.get("max_running")
    at_once = f"at most {maximum} at a time" if maximum else "no limit of running trials"
    return output.report(
        view,
        f"stoker: sweep {view['label']} ({output.clean(view['name'])}): {at_once}, "
        f"priority {view['priority']}; {progress_text(view)}",
    )


def _priority(args: Args) -> int:
    number = args.number("priority")
    if number is None or number != int(number):
        raise UsageError("--priority takes a whole number.")
    return int(number)
