"""List what is probably wrong: GPUs that are held and idle, jobs that hang or compute NaN, and
GPUs that are too hot or report errors.

An alarm ends no job. It disappears when it is not true any more.
"""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import Option, parse
from stoker.cli.output import clean, table, times
from stoker.cli.output.alarm_text import alarm_word
from stoker.cli.output.table import Column
from stoker.cli.session import connect_without_start
from stoker.client.errors import UsageError
from stoker.wire import JsonObject

USAGE = ("alarms",)
OPTIONS = (Option("--no-header", None, "print no header line"),)
COLUMNS = (
    Column("ALARM"),
    Column("JOBID", right=True),
    Column("GPU"),
    Column("SINCE"),
    Column("WHAT", cut=True),
    Column("TRY"),
)


def main(argv: list[str]) -> int:
    """Print one line per active alarm."""
    args = parse(OPTIONS, argv, verb="alarms")
    if args.words:
        raise UsageError(f"stoker alarms takes no arguments, but {args.words[0]!r} was given.")
    reply = connect_without_start().alarms()
    if args.flag("json"):
        return output.emit(reply)
    if not reply["alarms"]:
        output.say("stoker: no alarms")
        return 0
    rows = [_row(alarm) for alarm in reply["alarms"]]
    table.write(COLUMNS, rows, header=not args.flag("no_header"))
    return 0


def _row(alarm: JsonObject) -> list[str]:
    gpu = f"{alarm['node']}/{alarm['gpu']}" if alarm["gpu"] is not None else "-"
    return [
        alarm_word(alarm), str(alarm["label"] or "-"), clean(gpu),
        times.relative(alarm["since"]), clean(alarm["text"]), clean(alarm["action"]),
    ]  # fmt: skip
