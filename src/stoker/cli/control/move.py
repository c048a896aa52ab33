"""Change the order of pending jobs of equal priority."""

from __future__ import annotations

from stoker.cli.options import Option, parse
from stoker.cli.session import connect_existing, print_result, require_selectors
from stoker.client.errors import UsageError

USAGE = ("move JOB ... --first | --last | --before JOB | --after JOB",)
OPTIONS = (
    Option("--first", None, "to the head of the queue"),
    Option("--last", None, "to the end of the queue"),
    Option("--before", "JOB", "before another job"),
    Option("--after", "JOB", "after another job"),
)


def main(argv: list[str]) -> int:
    """Move the selected jobs."""
    args = parse(OPTIONS, argv, verb="move")
    select = require_selectors(args, "move")
    positions = [
        position for position in ("first", "last", "before", "after") if args.flag(position)
    ]
    if len(positions) != 1:
        raise UsageError(
            "No position given. Use one of --first, --last, --before JOB, --after JOB."
        )
    reply = connect_existing().move(select, positions[0], args.text(positions[0]))
    return print_result(reply, args, "moved")
