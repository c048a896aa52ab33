"""Sum up GPU and CPU time, energy and waiting time of ended and running jobs, by user or --by KEY.

MEM is the memory of the largest process, CPU-H and MEM are of ended attempts.

TIME is 30d or 12h (ago), yesterday, 2026-11-01 or 2026-11-01T12:00.
"""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import Option, parse
from stoker.cli.output import clean, table, times
from stoker.cli.output.sizes import rounded
from stoker.cli.output.table import Column
from stoker.cli.session import connect_without_start
from stoker.client.errors import UsageError
from stoker.wire import JsonObject

USAGE = ("usage [--by KEY] [--since TIME] [--until TIME]",)
OPTIONS = (
    Option("--by", "KEY", "user, group, queue, sweep, label, model, gpus, cause or day"),
    Option("-S/--since", "TIME", "only what ended after TIME (30d)"),
    Option("-E/--until", "TIME", "only what ended before TIME"),
    Option("-u/--user", "NAME", "only jobs of this user"),
    Option("--queue", "NAME", "only jobs of this queue"),
    Option("--csv", None, "print CSV with all fields"),
    Option("--no-header", None, "print no header line"),
)
COLUMNS = tuple(
    Column(title, right=True, drop=drop)
    for title, drop in (
        ("JOBS", 0), ("FAILED", 0), ("GPU-H", 0), ("BUSY", 0), ("WASTED", 0), ("KWH", 0),
        ("CPU-H", 1), ("MEM", 1), ("WAIT50", 0), ("WAIT90", 0),
    )
)  # fmt: skip


def main(argv: list[str]) -> int:
    """Print one line per group, and the total."""
    args = parse(OPTIONS, argv, verb="usage")
    if args.words:
        raise UsageError(f"stoker usage takes no arguments, but {args.words[0]!r} was given.")
    since, until = args.text("since"), args.text("until")
    reply = connect_without_start().usage_summary(
        by=args.text("by"), user=args.text("user"), queue=args.text("queue"),
        since=times.iso(times.parse_time(since)) if since else None,
        until=times.iso(times.parse_time(until)) if until else None,
    )  # fmt: skip
    if args.flag("json"):
        return output.emit(reply)
    groups: list[JsonObject] = reply["groups"]
    header = not args.flag("no_header")
    if args.flag("csv"):
        names = list(reply["total"])
        rows = (["" if group[name] is None else group[name] for name in names] for group in groups)
        table.write_csv(names, rows, header=header)
        return 0
    if not groups:
        output.say("stoker: no jobs in this time")
        return 0
    has_cost = reply["total"]["cost"] is not None
    columns = [Column(str(reply["by"]).upper(), cut=True), *COLUMNS]
    if has_cost:
        columns.append(Column(reply["currency"] or "COST", right=True))
    shown = [*groups, reply["total"]] if len(groups) > 1 else groups
    table.write(columns, [_row(group, has_cost) for group in shown], header=header)
    return 0


def _row(group: JsonObject, has_cost: bool) -> list[str]:
    busy, kwh, cpu = group["utilization"], group["kwh"], group["cpu_hours"]
    peak = rounded(group["rss_peak"]) if group["rss_peak"] else "-"
    row = [
        clean(group["key"]), str(group["jobs"]), str(group["failed"]),
        f"{group['gpu_hours']:.2f}", "-" if busy is None else f"{busy:.0f}%",
        f"{group['wasted_gpu_hours']:.2f}", "-" if kwh is None else f"{kwh:.2f}",
        "-" if cpu is None else f"{cpu:.2f}", peak,
        times.duration(group["wait_p50"]) or "-", times.duration(group["wait_p90"]) or "-",
    ]  # fmt: skip
    return [*row, f"{group['cost']:.2f}"] if has_cost else row
