"""Plot the metrics that a job has reported."""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import WATCH, Args, Option, parse
from stoker.cli.output import colour, table
from stoker.cli.output.table import Column
from stoker.cli.session import connect_existing
from stoker.client.client import Client
from stoker.client.errors import NotFound, UsageError
from stoker.wire import JsonObject

USAGE = ("metrics [OPTIONS] JOB [NAME ...]",)
OPTIONS = (
    WATCH,
    Option("--points", "N", "points per curve; ends and extremes are kept (500)"),
    Option("--log", None, "logarithmic scale"),
    Option("--csv", None, "print CSV: name, step, value, time"),
    Option("--no-header", None, "print no header line"),
)
COLUMNS = (
    Column("NAME", cut=True),
    Column("POINTS", right=True),
    Column("LAST", right=True),
    Column("STEP", right=True),
    Column("MIN", right=True),
    Column("AT", right=True),
    Column("MAX", right=True),
    Column("AT", right=True),
)
ALL_POINTS = 1_000_000
MAX_CURVES = 4
"""Curves that are drawn if none is named."""
CURVE_HEIGHT, LABEL_WIDTH = 8, 10


def main(argv: list[str]) -> int:
    """Show the curves of one job, by default the newest."""
    args = parse(OPTIONS, argv, verb="metrics")
    if args.flag("csv") and (args.flag("json") or args.flag("watch")):
        raise UsageError("--csv cannot be combined with --json or --watch.")
    client = connect_existing(autostart=False)
    job, names = (args.words or ["last"])[0], args.words[1:]
    if args.flag("watch"):
        from stoker.cli.session.live import watch

        return watch(
            args,
            lambda: _request_metrics(client, job, names, args),
            lambda reply, _: metric_lines(reply, names, args),
        )
    reply = _request_metrics(client, job, names, args)
    if args.flag("json"):
        return output.emit(reply)
    if args.flag("csv"):
        rows = (
            [name, _exact(step), _exact(value), at]
            for name, points in reply["series"].items()
            for step, value, at in points
        )
        table.write_csv(("name", "step", "value", "time"), rows, header=not args.flag("no_header"))
        return 0
    lines = metric_lines(reply, names, args)
    if lines:
        print("\n".join(lines))
    else:
        output.say(f"stoker: {no_metrics_text(reply)}")
    return 0


def _request_metrics(client: Client, job: str, names: list[str], args: Args) -> JsonObject:
    points = args.count("points", ALL_POINTS if args.flag("csv") else 500)
    reply = client.metrics(job, names=",".join(names) or None, points=points)
    missing = [name for name in names if name not in reply["series"]]
    if missing and reply["names"]:
        has = ", ".join(output.clean(name) for name in reply["names"][:8])
        more = ", ..." if len(reply["names"]) > 8 else ""
        raise NotFound(
            f"Job {reply['label']} has no metrics named {', '.join(missing)}; it has {has}{more}."
        )
    return reply


def no_metrics_text(reply: JsonObject) -> str:
    """Return how to report metrics."""
    return (
        f"job {reply['label']} has reported no metrics; call "
        "stoker.training.report(loss=...) in its script (see docs/training.md)"
    )


def metric_lines(reply: JsonObject, names: list[str], args: Args) -> list[str]:
    """Return the table of metrics, on a terminal below their curves."""
    series: JsonObject = reply["series"]
    width = table.terminal_width()
    lines: list[str] = []
    if width is not None:
        for name in names or list(series)[:MAX_CURVES]:
            if name in series:
                lines += [*_curve(name, series[name], width, args.flag("log")), ""]
    rows = [_row(name, summary) for name, summary in reply["summary"].items()]
    header = not args.flag("no_header")
    if rows:
        lines += table.render(COLUMNS, rows, header=header, width=width)
    return lines


def _curve(name: str, points: list[list[float | None]], width: int, logarithmic: bool) -> list[str]:
    from stoker.cli.output.plot import plot

    if logarithmic:
        points = [[step, _log(value), at] for step, value, at in points]
    values = [value for _, value, _ in points if value is not None]
    steps = [step for step, _, _ in points if step is not None]
    room = max(width - LABEL_WIDTH - 2, 10)
    title = table.shorten(output.clean(name) + (" (log)" if logarithmic else ""), room)
    lines = [" " * (LABEL_WIDTH + 1) + colour.paint(title, "bold")]
    if not values:
        return [*lines, " " * (LABEL_WIDTH + 1) + "no numbers"]
    for index, row in enumerate(plot(points, room, CURVE_HEIGHT)):
        label = number_text(max(values)) if not index else ""
        label = number_text(min(values)) if index == CURVE_HEIGHT - 1 else label
        lines.append(f"{label:>{LABEL_WIDTH}} {colour.paint(row.rstrip(chr(0x2800)), 'cyan')}")
    first, last = number_text(min(steps, default=0.0)), number_text(max(steps, default=0.0))
    gap = max(room - table.display_width(first) - table.display_width(last), 1)
    return [*lines, f"{'':>{LABEL_WIDTH}} {first}{' ' * gap}{last}"]


def _log(value: float | None) -> float | None:
    from math import log10

    return log10(value) if value is not None and value > 0 else None


def _row(name: str, summary: JsonObject) -> list[str]:
    cells = [name, f"{summary['count']:,}"]
    for which in ("last", "min", "max"):
        step, value, _ = summary[which]
        cells += [number_text(value), number_text(step)]
    return cells


def number_text(value: float | None) -> str:
    """Return a number with at most four digits, integers in full."""
    if value is None:
        return "nan"
    if value == int(value) and abs(value) < 1e7:
        return str(int(value))
    return f"{value:.4g}"


def _exact(value: float | None) -> str:
    if value is None:
        return "nan"
    return str(int(value)) if value == int(value) and abs(value) < 1 << 53 else repr(value)
