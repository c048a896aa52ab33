"""List what is probably wrong: GPUs that are held and idle, jobs that hang or compute NaN, and
GPUs that are too hot or report errors.

An alarm ends a job only if its rule says so; see --alarm in `stoker submit --help`. It disappears
when it is not true any more.
"""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import Option, parse
from stoker.cli.output import clean, table, times
from stoker.cli.output.alarm_text import alarm_word, evidence_lines
from stoker.cli.output.table import Column
from stoker.cli.session import connect_without_start
from stoker.client.errors import UsageError
from stoker.wire import JsonObject

USAGE = ("alarms",)
OPTIONS = (
    Option("-v/--verbose", None, "show what the processes of hung jobs were doing"),
    Option("--no-header", None, "print no header line"),
)
COLUMNS = (
    Column("ALARM"),
    Column("JOBID", right=True),
    Column("GPU"),
    Column("SINCE"),
    Column("WHAT", cut=True),
    Column("ACTION"),
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
    for alarm in reply["alarms"] if args.flag("verbose") else ():
        if lines := evidence_lines(alarm):
            print(f"\n{alarm_word(alarm)} {alarm['label']}:", *lines, sep="\n")
    return 0


def _row(alarm: JsonObject) -> list[str]:
    gpu = f"{alarm['node']}/{alarm['gpu']}" if alarm["gpu"] is not None else "-"
    return [
        alarm_word(alarm), str(alarm["label"] or "-"), clean(gpu),
        times.relative(alarm["since"]), clean(alarm["text"]), alarm.get("response") or "tell",
        clean(alarm["action"]),
    ]  # fmt: skip
