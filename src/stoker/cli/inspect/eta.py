"""Estimate when jobs start and end, with a range that is right four times out of five.

The daemon simulates its queue several times, with its own policies: durations come from measured
epochs, earlier runs and time limits, and jobs are submitted as they were submitted before.
In columns, ~ marks an estimate from similar jobs and < an upper bound from time limits.
"""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import VERBOSE, WATCH, Args, Option, parse
from stoker.cli.output import colour, table, times
from stoker.cli.output.estimates import estimate_cell, estimate_sentence, time_until
from stoker.cli.output.table import Cell, Column
from stoker.cli.session import NOTHING_QUEUED, connect_without_start, has_state
from stoker.wire import JsonObject

USAGE = ("eta [OPTIONS] [JOB ...]",)
OPTIONS = (
    Option("--limit", "N", "at most N jobs (1000)"),
    Option("--no-header", None, "print no header line"),
    WATCH,
    VERBOSE,
)
COLUMNS = (
    Column("JOBID", right=True),
    Column("NAME", cut=True),
    Column("USER", cut=True, drop=2),
    Column("STATE"),
    Column("STARTS"),
    Column("ENDS"),
    Column("FROM", cut=True, drop=3),
)


def main(argv: list[str]) -> int:
    """Print the estimates once or repeatedly."""
    args = parse(OPTIONS, argv, verb="eta")
    limit = args.count("limit", minimum=1)
    if not has_state():
        return output.report({"jobs": [], "more": 0}, f"stoker: {NOTHING_QUEUED}")
    client = connect_without_start()

    def request() -> JsonObject:
        return client.eta(args.words, limit=limit)

    if args.flag("watch"):
        from stoker.cli.session.live import watch

        return watch(args, request, lambda reply, _: eta_lines(reply, args))
    reply = request()
    if args.flag("json"):
        return output.emit(reply)
    lines = eta_lines(reply, args)
    if lines:
        print("\n".join(lines))
    text = forecast_age(reply) if reply["jobs"] else "no running or pending jobs"
    output.say(f"stoker: {text}")
    return 0


def eta_lines(reply: JsonObject, args: Args) -> list[str]:
    """Return sentences about one job, or a table of several."""
    views: list[JsonObject] = reply["jobs"]
    if args.words and len(views) == 1:
        return job_sentences(views[0], reply)
    if not views:
        return []
    verbose = args.flag("verbose")
    rows = [_row(view, reply, verbose) for view in views]
    header = not args.flag("no_header")
    lines = table.render(COLUMNS, rows, header=header, width=table.terminal_width())
    if reply.get("more"):
        lines.append(f"... and {output.counted(int(reply['more']), 'more job')}")
    return lines


def _row(view: JsonObject, reply: JsonObject, verbose: bool) -> list[str]:
    is_pending = view["state"] in ("PENDING", "QUEUED")
    starts = estimate_cell(view["start"], verbose=verbose)
    ends = estimate_cell(view["end"], verbose=verbose)
    if is_pending and not starts:
        starts = "-" if view.get("never") else _beyond_horizon(reply)
    basis = view.get("never") or ((view["start"] if is_pending else view["end"]) or {}).get(
        "basis", ""
    )
    state = str(view["state"])
    return [
        str(view["label"]),
        str(view.get("name") or ""),
        str(view.get("user") or ""),
        Cell(state, *(("green",) if state == "RUNNING" else ())),
        starts if is_pending else "",
        ends or "-",
        output.clean(basis),
    ]


def _beyond_horizon(reply: JsonObject) -> str:
    """Return the start of a job that is too far back in the queue to be simulated."""
    return f"after {time_until(reply['horizon'])}" if reply.get("horizon") else "later"


def job_sentences(view: JsonObject, reply: JsonObject) -> list[str]:
    """Return the estimates of one job in sentences."""
    name = f" {output.clean(view['name'])}" if view.get("name") else ""
    head = colour.paint(f"Job {view['label']}{name}", "bold")
    lines = [f"{head} is {view['state']}."]
    is_pending = view["state"] in ("PENDING", "QUEUED")
    if is_pending and (view["start"] or not view.get("never")):
        starts = estimate_sentence(view["start"]) if view["start"] else _beyond_horizon(reply)
        lines.append(f"It should start {starts}.")
    if view["end"]:
        lines.append(f"It should end {estimate_sentence(view['end'])}.")
    if view.get("never"):
        lines.append(f"There is no estimate: {output.clean(view['never'])}.")
    return lines


def forecast_age(reply: JsonObject) -> str:
    """Return `as of 12 s ago, from 9 simulated futures`, and why there is nothing newer."""
    ago = times.relative(reply["at"])
    when = "as of now" if ago == "now" else f"as of {ago}"
    failed = f"; {output.clean(reply['trouble'])}" if reply.get("trouble") else ""
    newer = "; a newer forecast is being computed" if reply.get("newer") else ""
    return (
        f"{when}, from {output.counted(int(reply['futures']), 'simulated future')}{failed}{newer}"
    )
