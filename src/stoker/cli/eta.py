"""When jobs should start and end, with a range that holds four times out of five.

The daemon plays its own queue on, several times, with its own rules: each job lasts as long as it
may, by what is known of it, and others come as they have come before.
"""

from __future__ import annotations

import time

from stoker.cli import colour, output, table, times
from stoker.cli.options import VERBOSE, WATCH, Args, Option, parse
from stoker.cli.session import viewer, was_used
from stoker.cli.table import Cell, Column

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
    Column("STARTS", cut=True),
    Column("ENDS", cut=True),
    Column("FROM", cut=True, drop=3),
)


def main(argv: list[str]) -> int:
    """Print what is foreseen, once or again and again."""
    args = parse(OPTIONS, argv, verb="eta")
    limit = args.count("limit", least=1)
    if not was_used():
        if args.flag("json"):
            output.emit({"jobs": [], "more": 0})
        else:
            output.say("stoker: nothing queued. Start with: stoker submit COMMAND")
        return 0
    client = viewer()

    def ask() -> dict[str, Any]:
        return client.eta(args.words, limit=limit)

    if args.flag("watch"):
        from stoker.cli.watch import seconds, watch

        return watch(seconds(args) or 10.0, lambda: drawn(ask(), args))
    reply = ask()
    if args.flag("json"):
        output.emit(reply)
        return 0
    lines = drawn(reply, args)
    if lines:
        print("\n".join(lines))
    if not reply["jobs"]:
        output.say("stoker: no running or pending jobs")
    else:
        output.say(f"stoker: {age(reply)}")
    return 0


def drawn(reply: dict[str, Any], args: Args) -> list[str]:
    """Return a sentence about one job, or a table of several."""
    views: list[dict[str, Any]] = reply["jobs"]
    if args.words and len(views) == 1:
        return told(views[0], reply)
    if not views:
        return []
    verbose = args.flag("verbose")
    rows = [_row(view, reply, verbose) for view in views]
    lines = table.render(
        COLUMNS,
        rows,
        header=not args.flag("no_header"),
        width=table.terminal_width(),
        coloured=colour.wanted(),
    )
    if reply.get("more"):
        lines.append(f"... and {output.counted(int(reply['more']), 'more job')}")
    return lines


def _row(view: dict[str, Any], reply: dict[str, Any], verbose: bool) -> list[str]:
    waits = view["state"] == "PENDING"
    starts, ends = span(view["start"], verbose=verbose), span(view["end"], verbose=verbose)
    if waits and not starts:
        starts = "-" if view.get("never") else _later(reply)
    basis = view.get("never") or view.get("basis") or ""
    state = str(view["state"])
    return [
        str(view["label"]),
        str(view.get("name") or ""),
        str(view.get("user") or ""),
        Cell(state, *(("green",) if state == "RUNNING" else ())),
        starts if waits else "",
        ends or "-",
        output.clean(basis),
    ]


def _later(reply: dict[str, Any]) -> str:
    """Return when a job starts of which nothing was foreseen, since too many are before it."""
    away = _away(reply["horizon"]) if reply.get("horizon") else "now"
    return "later" if away == "now" else f"after {away}"


def span(found: dict[str, Any] | None, *, verbose: bool = False) -> str:
    """Return `in 2 h (1 h - 5 h)`, or with more said `21:31 (20:40 - 2026-11-16 03:00)`."""
    if not found:
        return ""
    low, likely, high = found["low"], found["likely"], found["high"]
    if likely is None and _away(low) == "now":
        return "not foreseeable"
    if likely is None:
        return f"after {_clock(low)}" if verbose else f"after {_away(low)}"
    if verbose:
        return f"{_clock(likely)} ({_clock(low)} - {_clock(high) if high else '?'})"
    first, last = _away(low), _away(high) if high else "?"
    middle = times.relative(likely)
    if middle.endswith(" ago"):
        middle = "any moment"
    return middle if first == last else f"{middle} ({first} - {last})"


def _away(moment: str) -> str:
    """Return how long it is until then: `3 h`, `now`."""
    return "now" if times.relative(moment).endswith(("ago", "now")) else times.relative(moment)[3:]


def told(view: dict[str, Any], reply: dict[str, Any]) -> list[str]:
    """Return what is to be said about one job."""
    bold = ("bold",) if colour.wanted() else ()
    name = f" {output.clean(view['name'])}" if view.get("name") else ""
    head = colour.paint(f"Job {view['label']}{name}", *bold)
    if view.get("never"):
        return [f"{head} is {view['state']}: nothing can be foreseen, {view['never']}."]
    lines = [f"{head} is {view['state']}."]
    if view["state"] == "PENDING":
        starts = _sentence(view["start"]) if view["start"] else f" {_later(reply)}"
        lines.append(f"It should start{starts}.")
    if view["end"]:
        lines.append(f"It should end{_sentence(view['end'])}.")
    if view.get("basis"):
        lines.append(f"That goes by {output.clean(view['basis'])}.")
    return lines


def _sentence(found: dict[str, Any]) -> str:
    """Return ` in 2 h, at 21:31 (between 20:40 and 23:00)`, as far as that is known."""
    low, likely, high = found["low"], found["likely"], found["high"]
    if likely is None and _away(low) == "now":
        return " when nobody can foresee"
    if likely is None:
        return f" after {_clock(low)}, later than can be foreseen"
    soon = times.relative(likely)
    soon = "any moment" if soon.endswith((" ago", "now")) else soon
    edges = f"between {_clock(low)} and {_clock(high)}" if high else f"not before {_clock(low)}"
    return f" {soon}, at {_clock(likely)} ({edges})"


def _clock(moment: str) -> str:
    """Return `21:31`, with the date unless that is today."""
    day, _, clock = times.absolute(moment)[:-3].partition(" ")
    today = times.absolute(times.iso(time.time())).partition(" ")[0]
    return clock if day == today else f"{day} {clock}"


def age(reply: dict[str, Any]) -> str:
    """Return `as of 12 s ago, from 9 possible futures`, and why there is nothing newer."""
    ago = times.relative(reply["at"])
    when = "as of now" if ago == "now" else f"as of {ago}"
    failed = f"; {output.clean(reply['trouble'])}" if reply.get("trouble") else ""
    newer = "; a newer answer is being worked out" if reply.get("newer") else ""
    return f"{when}, from {output.counted(int(reply['futures']), 'possible future')}{failed}{newer}"
