"""Print a job's output, byte for byte.

`logs -f` follows the output until the job ends and returns its exit code. Of several jobs, the
lines are printed as they come, each with its job in front; without -f each job has a heading.
"""

from __future__ import annotations

import sys

from stoker.cli import output
from stoker.cli.options import Args, Option, parse
from stoker.cli.output.times import parse_duration
from stoker.cli.session import connect_existing
from stoker.cli.session.follow import dismiss_failures, report_failures
from stoker.client import reconnect
from stoker.client.client import Client, require_attempt
from stoker.client.errors import UsageError
from stoker.wire import JsonObject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.client.reconnect import Target

USAGE = ("logs [-f] [OPTIONS] JOB ...",)
OPTIONS = (
    Option("-f/--follow", None, "follow until the job ends; return its exit code"),
    Option("-n/--tail/--lines", "N", "only the last N lines", key="tail"),
    Option("--since", "TIME", "only output of the last 5m, 2h"),
    Option("--stderr/--err", None, "stderr, if it has its own file", key="stderr"),
    Option("--attempt", "K", "output of attempt K (0 is the first)"),
    Option("--part", "K", "multi-node jobs: output of rank K"),
    Option("--path", None, "print the path of the file instead"),
)


def main(argv: list[str]) -> int:
    """Copy logs to stdout, by default of the newest job."""
    args = parse(OPTIONS, argv, verb="logs")
    if args.flag("json") and args.flag("follow"):
        raise UsageError("--json and --follow cannot be combined.")
    client = connect_existing(autostart=False)
    views = client.jobs(args.words or ["last"], limit=100_000)["jobs"]
    attempt = args.count("attempt")
    if attempt is not None:
        for view in views:
            require_attempt(view, attempt, may_start_later=args.flag("follow"))
    if args.flag("path"):
        key = "error_log" if args.flag("stderr") else "log"
        paths = [str(view.get(key) or view["log"]) for view in views]
        if args.flag("json"):
            pairs = zip(views, paths, strict=True)
            output.emit([{"id": v["id"], "label": v["label"], "log": path} for v, path in pairs])
        else:
            print("\n".join(paths))
        return 0
    if args.flag("json"):
        return output.emit([_log_as_dict(client, view, args) for view in views])
    _print_earlier_attempt(views, args)
    if args.flag("follow"):
        return _follow(client, views, args)
    for number, view in enumerate(views):
        if len(views) > 1:
            gap, name = "\n" if number else "", output.clean(view.get("name") or "")
            print(f"{gap}==> {view['label']} {name} <==", flush=True)
        for piece in client.log(str(view["label"]), follow=False, **_query(args)):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    dismiss_failures(client, views)
    return 0


def _print_earlier_attempt(views: list[JsonObject], args: Args) -> None:
    """Print where the output of the previous attempt is, unless they share a file."""
    if len(views) != 1 or args.count("attempt") is not None:
        return
    view, attempt = views[0], int(views[0]["attempt"])
    earlier = [int(past["attempt"]) for past in view.get("attempts") or ()]
    earlier = [number for number in earlier if number < attempt]
    has_own_log = str(view["log"]).endswith(f"/{view['id']}.{attempt}.out")
    if not earlier or not has_own_log or (args.flag("stderr") and view.get("error_log")):
        return
    not_started = " has not started" if view["state"] == "PENDING" else ""
    output.say(
        f"stoker: attempt {attempt} of job {view['label']}{not_started}; output of the "
        f"previous attempt: stoker logs --attempt {earlier[-1]} {view['label']}"
    )


def _follow(client: Client, views: list[JsonObject], args: Args) -> int:
    first = {str(view["label"]): int(view["attempt"]) for view in views}

    def copy(label: str, target: Target) -> None:
        query = _query(args)
        if "attempt" in query:
            pieces = reconnect.follow_log(client, label, **query)
        else:
            pieces = reconnect.follow_attempts(client, label, first[label], **query)
        reconnect.copy(pieces, target)

    if len(views) == 1:
        copy(next(iter(first)), sys.stdout.buffer)
    elif views:
        from stoker.cli.session.follow_many import follow_many

        pending_last = sorted(views, key=lambda view: view["state"] == "PENDING")
        follow_many([str(view["label"]) for view in pending_last], copy)
    return report_failures(client, reconnect.wait(client, list(first))["jobs"])


def _log_as_dict(client: Client, view: JsonObject, args: Args) -> JsonObject:
    data = b"".join(client.log(str(view["label"]), follow=False, **_query(args)))
    text = data.decode("utf-8", "replace")
    return {"id": view["id"], "label": view["label"], "log": view["log"], "text": text}


def _query(args: Args) -> dict[str, object]:
    """Return the query parameters for the options."""
    query: dict[str, object] = {}
    if args.flag("stderr"):
        query["stream"] = "err"
    for key in ("tail", "attempt", "part"):
        count = args.count(key)
        if count is not None:
            query[key] = count
    since = args.text("since")
    if since is not None:
        query["since"] = round(parse_duration(since))
    return query
