"""List running and pending jobs, and failures you have not seen.

A failure stays listed until `show` or `logs` has displayed it, or --seen dismisses it. Pending
tasks of an array are one line, its failed tasks one entry, a sweep is one line; -e, or the id,
lists them one by one.
"""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import VERBOSE, WATCH, Args, Option, parse
from stoker.cli.output import colour, table, times
from stoker.cli.output.job_table import counts_text, queue_table
from stoker.cli.session import NOTHING_QUEUED, connect_without_start, has_state
from stoker.cli.session.listing import (
    LIST_OPTIONS,
    USER_OPTIONS,
    chosen_user,
    format_lines,
    select_columns,
)
from stoker.client.client import Client
from stoker.wire import JsonObject

USAGE = ("[queue] [OPTIONS] [JOB ...]",)
OPTIONS = (
    *LIST_OPTIONS,
    WATCH,
    Option("--state", "LIST", "only these states: pending,running,failed"),
    *USER_OPTIONS,
    Option("-p/--queue/--partition", "NAME", "only jobs of this queue", key="queue"),
    Option("--limit", "N", "at most N jobs (1000; on a terminal 100)"),
    Option("-a/--all", None, "no limit"),
    Option("-e/--expand", None, "list tasks of arrays and trials of sweeps one by one"),
    Option("--eta", None, "wait for a new forecast of start and end times"),
    Option("--seen", None, "dismiss the listed failures"),
    VERBOSE,
)
TAIL_LINES = 5
MAX_FAILURES = 10
"""Failures that are listed with an excerpt on a terminal."""
NO_LIMIT = 100_000
_FAILED_STATES = frozenset(("FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "DEADLINE"))
SHORT_STATES = {"pd": "PENDING", "r": "RUNNING", "cd": "COMPLETED", "f": "FAILED",
                "ca": "CANCELLED", "to": "TIMEOUT", "oom": "OUT_OF_MEMORY", "nf": "NODE_FAIL",
                "s": "SUSPENDED", "cf": "CONFIGURING", "q": "QUEUED", "cg": "COMPLETING",
                "dl": "DEADLINE"}  # fmt: skip


def main(argv: list[str]) -> int:
    """Print the queue once, or repeatedly with --watch."""
    args = parse(OPTIONS, argv, verb="queue")
    if not has_state():
        return output.report(
            {"jobs": [], "sweeps": [], "more": 0, "counts": {}}, f"stoker: {NOTHING_QUEUED}"
        )
    client = connect_without_start()
    if args.flag("watch"):
        from stoker.cli.session.live import watch

        def request() -> tuple[JsonObject, list[JsonObject]]:
            gpus = client.gpus()["gpus"] if _is_watch_screen(args) else []
            return _request_jobs(client, args), gpus

        return watch(args, request, lambda replies, height: _screen_lines(args, replies, height))
    reply = _request_jobs(client, args)
    if args.flag("json"):
        output.emit(reply)
    else:
        lines = queue_lines(reply, args)
        if lines:
            print("\n".join(lines))
        else:
            output.say("stoker: the queue is empty")
        if reply.get("more") and _more_text(reply) not in lines[-3:]:
            output.say(_more_text(reply))
        for warning in reply.get("warnings") or ():
            output.say(f"stoker: warning: {output.clean(warning)}")
    if args.flag("seen"):
        from stoker.cli.session.follow import dismiss_jobs

        args.values["expand"] = "1"  # one label per failure
        views = _request_failures(client, args, NO_LIMIT)
        dismiss_jobs(client, [str(view["label"]) for view in views if is_failure(view)])
    return 0


def _request_jobs(client: Client, args: Args) -> JsonObject:
    limit = args.count("limit")
    if limit is None:
        limit = NO_LIMIT if args.flag("all") else 100 if output.is_terminal(1) else 1000
    state = full_states(args.text("state"))
    if args.flag("eta"):
        client.eta(limit=1)  # the list then has the new forecast
    reply = client.jobs(args.words, state=state, limit=limit, **_query(client, args))
    user = chosen_user(client, args)
    if user is not None and reply.get("sweeps"):
        reply["sweeps"] = [sweep for sweep in reply["sweeps"] if sweep["user"] == user]
    cut = bool(reply.get("more")) and not any(is_failure(view) for view in reply["jobs"])
    is_table = not (args.flag("json") or args.flag("json_lines") or args.text("format"))
    is_whole = state is None and not args.words
    if cut and is_table and is_whole and _FAILED_STATES & set(reply.get("counts") or {}):
        # A long queue must not hide the failures.
        failed = _request_failures(client, args, MAX_FAILURES)
        reply["jobs"] += failed
        reply["more"] -= sum(map(job_count, failed))
    return reply


def _query(client: Client, args: Args) -> JsonObject:
    plain = args.text("format") is None and not args.flag("json_lines")
    return {
        "user": chosen_user(client, args),
        "queue": args.text("queue"),
        "tail": TAIL_LINES if plain else None,
        "fold": "1" if plain and _folds_sweeps(args) else None,
        "arrays": "1" if _groups_arrays(args) else None,
        "estimate": "1" if plain else None,
    }


def _request_failures(client: Client, args: Args, limit: int) -> list[JsonObject]:
    """Return the newest failures among the selected jobs."""
    state = full_states(args.text("state")) or ",".join(sorted(_FAILED_STATES))
    return list(client.jobs(args.words, state=state, limit=limit, **_query(client, args))["jobs"])


def _groups_arrays(args: Args) -> bool:
    """Return True if tasks of an array may share a row: only in the default table."""
    exact = any(args.flag(key) for key in ("json", "json_lines", "expand"))
    custom = any(args.text(key) is not None for key in ("format", "columns"))
    return not (exact or custom or args.words)


def _folds_sweeps(args: Args) -> bool:
    """Return True if a sweep is one row: not if single jobs are selected."""
    filtered = any(args.text(key) is not None for key in ("state", "queue", "columns"))
    return not (args.words or filtered or args.flag("expand"))


def full_states(states: str | None) -> str | None:
    """Return full state names: `pd,running` is PENDING,RUNNING."""
    if states is None:
        return None
    names = [name.strip().lower() for name in states.split(",") if name.strip()]
    return ",".join(SHORT_STATES.get(name, name.upper()) for name in names)


def queue_lines(reply: JsonObject, args: Args) -> list[str]:
    """Return the list as lines."""
    views: list[JsonObject] = reply["jobs"]
    lines = format_lines(args, views)
    if lines is not None:
        return lines
    header = not args.flag("no_header")
    width = table.terminal_width()
    custom = select_columns(args, views)
    failures: list[JsonObject] = []
    if custom is None and not args.words and args.text("state") is None:
        failures = [view for view in views if is_failure(view)]
        views = [view for view in views if not is_failure(view)]
    sweeps = reply.get("sweeps") or []
    columns, rows = custom or queue_table(views, sweeps, verbose=args.flag("verbose"), width=width)
    lines = []
    if rows or (custom and header):
        lines = table.render(columns, rows, header=header, width=width)
    for view in failures if width is None else failures[:MAX_FAILURES]:
        failure = _failure_lines(view, width)
        lines += ["", *failure] if lines else failure
    if width is not None and len(failures) > MAX_FAILURES:
        lines.append(f"... and {len(failures) - MAX_FAILURES} more: stoker queue --state failed")
    hidden = _hidden_failures(reply, failures) if _folds_sweeps(args) else 0
    if hidden:
        note = f"{output.counted(hidden, 'trial')} of sweeps failed: stoker queue --state failed"
        lines += ["", note] if lines else [note]
    if width is not None and reply.get("more"):
        lines.append(_more_text(reply))
    if width is not None and lines and header and reply.get("counts"):
        lines += ["", colour.paint(counts_text(reply["counts"]), "dim")]
    return lines


def _is_watch_screen(args: Args) -> bool:
    """Return True if --watch shows the whole queue, not a filtered or custom list."""
    return _groups_arrays(args) and args.text("state") is None


def _screen_lines(
    args: Args, replies: tuple[JsonObject, list[JsonObject]], height: int | None
) -> list[str]:
    """Return one screen of --watch."""
    reply, gpus = replies
    if height is None or not _is_watch_screen(args):
        return queue_lines(reply, args)
    from time import strftime

    from stoker.cli.inspect.queue_screen import watch_screen

    return watch_screen(
        reply,
        gpus,
        clock=strftime("%H:%M:%S"),
        width=table.terminal_width() or 80,
        height=height,
        verbose=args.flag("verbose"),
    )


def _hidden_failures(reply: JsonObject, shown: list[JsonObject]) -> int:
    """Return the number of failed trials that have no row, because their sweep is one row."""
    counts = reply.get("counts") or {}
    total = sum(count for state, count in counts.items() if state in _FAILED_STATES)
    return 0 if reply.get("more") else max(total - sum(map(job_count, shown)), 0)


def job_count(view: JsonObject) -> int:
    """Return the number of jobs in a row."""
    return int((view.get("members") or {}).get("count", 1))


def _more_text(reply: JsonObject) -> str:
    return f"... and {output.counted(int(reply['more']), 'more job')} (stoker queue -a)"


def is_failure(view: JsonObject) -> bool:
    """Return True for a job that is listed because it failed."""
    return view.get("result") is not None


def _failure_lines(view: JsonObject, width: int | None) -> list[str]:
    """Return heading, last output lines and suggested commands of a failure."""
    lines = [failure_heading(view, width)]
    for line in view.get("tail") or ():
        text = f"    | {output.clean(line)}"
        lines.append(text if width is None else table.shorten(text, width))
    label, members = view["label"], view.get("members")
    again = f"stoker retry {label}"
    if members:
        is_complete = "..." not in members["label"]
        again = f"stoker retry '{members['label']}'" if is_complete else "stoker retry --failed"
    return [*lines, colour.paint(f"    stoker logs {label}   {again}", "dim")]


def failure_heading(view: JsonObject, width: int | None) -> str:
    """Return `15_[0-299] evaluate  300 FAILED: exit 3, 2 min ago`."""
    members = view.get("members") or {}
    name = f" {output.clean(view['name'])}" if view.get("name") else ""
    causes = members.get("causes") or {view.get("cause") or "": 1}
    texts = [output.clean(cause).rstrip(".") for cause in list(causes)[:2] if cause]
    if len(causes) > 1:
        counts = list(causes.values())
        texts = [f"{cause} ({count:,})" for cause, count in zip(texts, counts, strict=False)]
        texts += [f"{len(causes) - 2} other causes"] if len(causes) > 2 else []
    state = f"{members['count']:,} {view['state']}" if members else str(view["state"])
    cause = f": {', '.join(texts)}" if texts else ""
    ended = times.relative(view.get("ended_at"))
    label = members.get("label") or view["label"]
    heading = f"{label}{name}  {state}{cause}" + (f", {ended}" if ended else "")
    cut = heading if width is None else table.shorten(heading, width)
    return cut.replace(state, colour.paint(state, "red", "bold"), 1)
