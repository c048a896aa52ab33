"""List fair share between users, or set the weight of a user or a unix group.

A user with weight 2 may use twice as much as one with weight 1 before its jobs are ranked behind.
The weight of a group is that of each member without its own. Fair share counts in queues with a
policy that has it (planner, fair).
"""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import Args, Option, parse
from stoker.cli.output import clean, table
from stoker.cli.output.table import Column
from stoker.cli.session import connect_without_start
from stoker.client.client import connect
from stoker.client.errors import UsageError
from stoker.wire import JsonObject

USAGE = ("share", "share USER|@GROUP WEIGHT", "share USER|@GROUP --clear")
OPTIONS = (
    Option("--clear", None, "remove the weight: as without it, 1 or that of a group"),
    Option("--no-header", None, "print no header line"),
)
MIN_WEIGHT, MAX_WEIGHT = 0.01, 1000
LEFT = ("USER", "FROM")
NAMES = ("USER", "WEIGHT", "FROM", "SHARE", "USED", "GPU-HOURS", "GPUS", "PENDING", "PENALTY")


def main(argv: list[str]) -> int:
    """List shares, or set a weight."""
    args = parse(OPTIONS, argv, verb="share")
    if args.words:
        return _set(args)
    if args.flag("clear"):
        raise UsageError("--clear needs a user or @group: stoker share ana --clear")
    reply = connect_without_start().shares()
    if args.flag("json"):
        return output.emit(reply)
    if not reply["queues"]:
        output.say("stoker: no queue has fair share; stoker policy planner, or stoker policy fair")
    for group in reply["groups"]:
        output.say(f"stoker: each user of @{clean(group['group'])} has weight {group['weight']:g}")
    if reply["shares"]:
        print("\n".join(_table(reply["shares"], args)))
    else:
        output.say("stoker: no user has jobs or recent usage")
    return 0


def _set(args: Args) -> int:
    subject, *others = args.words
    is_clear = args.flag("clear")
    if len(others) != (not is_clear):
        raise UsageError("Write stoker share USER WEIGHT, such as stoker share ana 2.")
    weight = None if is_clear else _weight(others[0])
    reply = connect().set_share(subject, weight)
    text = "no weight of its own" if weight is None else f"weight {weight:g}"
    done = "" if reply["changed"] else "; nothing changed"
    return output.report(reply, f"stoker: {clean(reply['subject'])}: {text}{done}")


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise UsageError(
            f"A weight is a number from {MIN_WEIGHT} to {MAX_WEIGHT}, not '{clean(text)}'."
        )
    return weight


def _table(views: list[JsonObject], args: Args) -> list[str]:
    columns = [Column(name, right=name not in LEFT) for name in NAMES]
    header = not args.flag("no_header")
    rows = [_row(view) for view in views]
    return table.render(columns, rows, header=header, width=table.terminal_width())


def _row(view: JsonObject) -> list[str]:
    """Return the part by weight, the part used, and the doublings by which jobs are behind."""
    return [
        clean(view["user"]), f"{view['weight']:g}", clean(view["source"] or "-"),
        f"{view['part']:.0%}", f"{view['usage_part']:.0%}", f"{view['usage']:.1f}",
        f"{view['gpus']:g}", str(view["pending"]),
        f"{view['penalty']:+g}" if view["penalty"] else "0",
    ]  # fmt: skip
