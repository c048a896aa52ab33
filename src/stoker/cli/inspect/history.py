"""List finished jobs, oldest first.

TIME is 2h or 3d (ago), 16:00, yesterday, 2026-11-01 or 2026-11-01T12:00.
"""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.inspect.queue import full_states
from stoker.cli.options import VERBOSE, Args, Option, parse
from stoker.cli.output import colour, table, times
from stoker.cli.output.job_table import epochs_text, field_text, gpus_text
from stoker.cli.output.table import Cell, Column
from stoker.cli.session import connect_without_start, has_state
from stoker.cli.session.listing import (
    LIST_OPTIONS,
    USER_OPTIONS,
    chosen_user,
    format_lines,
    select_columns,
)
from stoker.client import fast_json
from stoker.wire import JsonObject

USAGE = ("history [OPTIONS] [JOB ...]",)
OPTIONS = (
    Option("-S/--since/--starttime", "TIME", "only jobs that ended after TIME", key="since"),
    Option("-E/--until/--endtime", "TIME", "only jobs that ended before TIME", key="until"),
    Option("-s/--state", "LIST", "only these states: failed,timeout"),
    *USER_OPTIONS,
    Option("--name", "NAME", "only jobs with this name"),
    Option("-n/--limit", "N", "print at most the newest N jobs (100)", key="limit"),
    Option("--csv", None, "print CSV with all fields"),
    Option("--acts", None, "system daemon: print what was changed, and by which user"),
    *LIST_OPTIONS,
    VERBOSE,
)
COLUMNS = (
    Column("JOBID", right=True),
    Column("NAME", cut=True),
    Column("USER", cut=True, drop=3),
    Column("STATE"),
    Column("TIME", right=True),
    Column("GPUS", right=True),
    Column("CODE", right=True, drop=4),
    Column("ENDED"),
    Column("CAUSE", cut=True),
)
ACT_COLUMNS = (
    Column("AT"),
    Column("USER", cut=True),
    Column("UID", right=True),
    Column("REQUEST"),
    Column("JOBS", cut=True),
    Column("WHAT", cut=True),
)
GPUS_COLUMN = 5
"""Index of the column; epochs are inserted before it."""


def main(argv: list[str]) -> int:
    """List the jobs that pass the filters."""
    args = parse(OPTIONS, argv, verb="history")
    if args.flag("acts"):
        return _print_acts(args)
    reply = _request_history(args)
    views: list[JsonObject] = reply["jobs"]
    lines, header = format_lines(args, views), not args.flag("no_header")
    if args.flag("json"):
        output.emit(reply)
    elif lines is not None:
        print("\n".join(lines))
    elif args.flag("csv"):
        names = [name for name in (views[0] if views else ()) if name != "tail"]
        rows = ([_csv_text(view.get(name)) for name in names] for view in views)
        table.write_csv(names, rows, header=header)
    elif not views:
        output.say("stoker: no such jobs")
    else:
        columns, cells = select_columns(args, views) or _table(views, args.flag("verbose"))
        table.write(columns, cells, header=header)
        if reply.get("more"):
            output.say(f"stoker: {int(reply['more']):,} older jobs not shown; see --limit")
    return 0


def _print_acts(args: Args) -> int:
    """Print the changes that users have requested, oldest first."""
    reply = connect_without_start().acts(args.count("limit", 100) or 0)
    if args.flag("json"):
        output.emit(reply)
        return 0
    rows = [
        [
            times.list_time(act["at"], args.flag("verbose")), act["user"], str(act["uid"]),
            act["verb"], _ranges(act.get("jobs") or []), act.get("what") or "",
        ]
        for act in reply["acts"]
    ]  # fmt: skip
    table.write(ACT_COLUMNS, rows, header=not args.flag("no_header"))
    return 0


def _ranges(jobs: list[list[int]]) -> str:
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in jobs)


def _request_history(args: Args) -> JsonObject:
    since, until = args.text("since"), args.text("until")
    filters = {
        "state": full_states(args.text("state")),
        "name": args.text("name"),
        "since": times.iso(times.parse_time(since)) if since else None,
        "until": times.iso(times.parse_time(until)) if until else None,
        "limit": args.count("limit", 100),
    }
    if not has_state():
        return {"jobs": [], "more": 0}
    client = connect_without_start()
    return client.history(args.words, user=chosen_user(client, args), **filters)


def _table(views: list[JsonObject], verbose: bool) -> tuple[list[Column], list[list[str]]]:
    """Return columns and rows, with a column for epochs if any job has some."""
    columns, rows = list(COLUMNS), [_row(view, verbose) for view in views]
    epochs = [epochs_text(view.get("training")) for view in views]
    if any(text != "-" for text in epochs):
        column = Column("EPOCHS", right=True, drop=2)
        table.insert_column(columns, rows, GPUS_COLUMN, column, epochs)
    return columns, rows


def _row(view: JsonObject, verbose: bool) -> list[str]:
    tint = colour.STATE_COLOURS.get(str(view["state_code"]), "")
    result = view.get("result")
    return [
        str(view["label"]),
        str(view.get("name") or ""),
        str(view.get("user") or ""),
        Cell(view["state"], tint),
        times.duration(view.get("elapsed") or 0),
        gpus_text(view),
        "" if result is None else str(result),
        times.list_time(view.get("ended_at"), verbose),
        str(view.get("cause") or ""),
    ]


def _csv_text(value: object) -> str:
    return fast_json.dumps(value) if isinstance(value, dict | list) else field_text(value)
