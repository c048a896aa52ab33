"""Print a job's output, byte for byte.

`logs -f` follows the output until the job ends and returns its exit code. Of several jobs, the
lines are printed as they come, each with its job in front; without -f each job has a heading.
"""

from __future__ import annotations

import sys

from stoker import wire
from stoker.cli import output
from stoker.cli.options import Args, Option, parse
from stoker.cli.output.times import parse_duration
from stoker.cli.session import connect_existing
from stoker.cli.session.follow import dismiss_failures, report_failures
from stoker.client import reconnect
from stoker.client.client import Client
from stoker.client.errors import StokerError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
    """Copy logs to stdout; without a name, the newest job's."""
    args = parse(OPTIONS, argv, verb="logs")
    if args.flag("json") and args.flag("follow"):
        raise UsageError("--json and --follow cannot be combined.")
    client = connect_existing(autostart=False)
    views = client.jobs(args.words or ["last"], limit=100_000)["jobs"]
    _check_attempt(views, args)
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
        output.emit([_log_as_dict(client, view, args) for view in views])
        return 0
    _print_earlier_attempt(views, args)
    if args.flag("follow"):
        return _follow(client, views, args)
    for number, view in enumerate(views):
        _heading(view, len(views), number)
        for piece in client.log(str(view["label"]), follow=False, **_query(args)):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    _dismiss(client, views)
    return 0


def _check_attempt(views: list[dict[str, Any]], args: Args) -> None:
    """An attempt that never began has no log; one that is to come can be waited for."""
    asked = args.count("attempt")
    if asked is None:
        return
    for view in views:
        attempt = int(view["attempt"])
        began = view["state"] != "PENDING" or attempt == 0 or args.flag("follow")
        if asked > attempt or (asked == attempt and not began):
            raise StokerError(
                f"There is no attempt {asked} of job {view['label']}.",
                wire.EXIT_NOT_FOUND,
                "not_found",
            )


def _print_earlier_attempt(views: list[dict[str, Any]], args: Args) -> None:
    """Say where the output of earlier attempts is; a file that all share has it anyway."""
    if len(views) != 1 or args.count("attempt") is not None:
        return
    view, attempt = views[0], int(views[0]["attempt"])
    earlier = [int(past["attempt"]) for past in view.get("attempts") or ()]
    earlier = [each for each in earlier if each < attempt]
    own = str(view["log"]).endswith(f"/{view['id']}.{attempt}.out")
    if not earlier or not own or (args.flag("stderr") and view.get("error_log")):
        return
    begun = " has not started" if view["state"] == "PENDING" else ""
    output.say(
        f"stoker: attempt {attempt} of job {view['label']}{begun}; output of the previous attempt: "
        f"stoker logs --attempt {earlier[-1]} {view['label']}"
    )


def _follow(client: Client, found: list[dict[str, Any]], args: Args) -> int:
    first = {str(view["label"]): int(view["attempt"]) for view in found}

    def copy(label: str, target: Target) -> None:
        asked = _query(args)
        if "attempt" in asked:
            pieces = reconnect.follow_log(client, label, **asked)
        else:
            pieces = reconnect.follow_attempts(client, label, first[label], **asked)
        reconnect.copy(pieces, target)

    if len(found) == 1:
        copy(next(iter(first)), sys.stdout.buffer)
    elif found:
        from stoker.cli.session.follow_many import follow_many

        waiting = sorted(found, key=lambda view: view["state"] == "PENDING")
        follow_many([str(view["label"]) for view in waiting], copy)
    return report_failures(client, reconnect.wait(client, list(first))["jobs"])


def _log_as_dict(client: Client, view: dict[str, Any], args: Args) -> dict[str, Any]:
    data = b"".join(client.log(str(view["label"]), follow=False, **_query(args)))
    text = data.decode("utf-8", "replace")
    return {"id": view["id"], "label": view["label"], "log": view["log"], "text": text}


def _query(args: Args) -> dict[str, object]:
    """Return the query that the options amount to."""
    asked: dict[str, object] = {}
    if args.flag("stderr"):
        asked["stream"] = "err"
    for key in ("tail", "attempt", "part"):
        count = args.count(key)
        if count is not None:
            asked[key] = count
    since = args.text("since")
    if since is not None:
        asked["since"] = round(parse_duration(since))
    return asked


def _heading(view: dict[str, Any], count: int, number: int) -> None:
    if count > 1:
        name = output.clean(view.get("name") or "")
        gap = "\n" if number else ""
        sys.stdout.write(f"{gap}==> {view['label']} {name} <==\n")
        sys.stdout.flush()


def _dismiss(client: Client, views: list[dict[str, Any]]) -> None:
    """A failure whose log was read leaves the bare listing."""
    failed = [
        str(view["label"]) for view in views if view.get("result") and not view.get("dismissed")
    ]
    if failed:
        dismiss_failures(client, failed)
