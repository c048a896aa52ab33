"""Reserve GPUs or nodes for a time; list and cancel reservations.

  stoker reserve --gpus 2 --from 'fri 14:00' --for 4h --user ana
  stoker reserve --nodes gpu1 --from tomorrow --for 1d --name maintenance
  stoker reserve --devices gpu1/0,gpu1/1 --for 2h --queue demo

No job starts on what is reserved if its time limit or estimate reaches the begin, but for jobs of
the named users, groups and queues. At the begin, jobs that can be resumed are preempted; others
keep running. Without --user, --group and --queue it is yours; with a daemon of one user, no job
may run there.
"""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import Args, Option, parse
from stoker.cli.output import clean, table, times
from stoker.cli.output.table import Column
from stoker.cli.session import connect_without_start
from stoker.client.client import connect
from stoker.client.errors import UsageError
from stoker.wire import JsonObject

USAGE = (
    "reserve",
    "reserve --gpus N|--nodes NAMES|--devices NAMES [--from TIME] --for TIME [OPTIONS]",
    "reserve --cancel NAME",
)
OPTIONS = (
    Option("-G/--gpus", "N", "this many GPUs; those that will be free are chosen"),
    Option("--nodes", "NAMES", "whole nodes"),
    Option("--devices", "NAMES", "these GPUs: gpu1/0,gpu1/1"),
    Option("--from", "TIME", "begin: 'fri 14:00', now+2hours (default: now)", key="begin"),
    Option("--for", "TIME", "duration: 4h, 1d12h", key="duration"),
    Option("--user", "USER", "a user whose jobs may run there", many=True),
    Option("--group", "GROUP", "a unix group whose jobs may run there", many=True),
    Option("--queue", "QUEUE", "a queue whose jobs may run there", many=True),
    Option("--name", "NAME", "its name (default: r1, r2, ...)"),
    Option("--cancel", "NAME", "cancel a reservation"),
    Option("--no-header", None, "print no header line"),
)
COLUMNS = (Column("NAME"), Column("FROM"), Column("TO"), Column("FOR"), Column("BY"),
           Column("DEVICES", cut=True))  # fmt: skip


def main(argv: list[str]) -> int:
    """Make, list or cancel reservations."""
    args = parse(OPTIONS, argv, verb="reserve")
    if args.words:
        raise UsageError(
            f"stoker reserve takes no arguments, but {clean(args.words[0])!r} was given."
        )
    name = args.text("cancel")
    given = [option for option in OPTIONS[:9] if args.values.get(option.key)]
    if name is not None:
        if given:
            raise UsageError("--cancel takes the name of a reservation and nothing else.")
        reply = connect().cancel_reservation(name)
        return output.report(reply, f"stoker: cancelled the reservation {clean(reply['name'])}")
    return _make(args) if given else _list(args)


def _make(args: Args) -> int:
    duration = args.text("duration")
    if duration is None:
        raise UsageError("Say for how long, such as --for 4h.")
    reply = connect().reserve(
        begin=args.text("begin") or "now", duration=duration, name=args.text("name"),
        gpus=args.text("gpus"), nodes=_names(args, "nodes"), devices=_names(args, "devices"),
        subjects=[
            *args.many("user"), *(f"@{group}" for group in args.many("group")),
            *(f"queue:{queue}" for queue in args.many("queue")),
        ],
    )  # fmt: skip
    begin, end = times.absolute(reply["begin"]), times.absolute(reply["end"])
    who, name = _subjects(reply), clean(reply["name"])
    lines = [f"reserved {_devices(reply)} from {begin} to {end} for {who} ({name})"]
    for key, text in (
        ("preempts", "asked to stop at its begin"), ("continues", "not stopped, if still running"),
    ):  # fmt: skip
        if reply[key]:
            lines.append(f"{text}: job{'s' * (len(reply[key]) > 1)} {', '.join(reply[key])}")
    return output.report(reply, "\n".join(f"stoker: {line}" for line in lines))


def _names(args: Args, key: str) -> list[str]:
    return [name.strip() for name in (args.text(key) or "").split(",") if name.strip()]


def _list(args: Args) -> int:
    views = connect_without_start().reservations()["reservations"]
    if args.flag("json"):
        return output.emit(views)
    if not views:
        output.say("stoker: nothing is reserved")
        return 0
    rows = [
        [
            clean(view["name"]), times.absolute(view["begin"]), times.absolute(view["end"]),
            _subjects(view), clean(view["user"]), _devices(view),
        ]
        for view in views
    ]  # fmt: skip
    header = not args.flag("no_header")
    print("\n".join(table.render(list(COLUMNS), rows, header=header, width=table.terminal_width())))
    return 0


def _devices(view: JsonObject) -> str:
    return clean(", ".join([*view["nodes"], *view["gpus"]]))


def _subjects(view: JsonObject) -> str:
    return clean(", ".join(view["subjects"])) or "no job"
