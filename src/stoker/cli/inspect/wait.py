"""Wait for jobs to end; return their exit code.

Exit code: the job's own; 128+N if signal N killed it, 124 at its time limit, 143 if it was
cancelled, 101 if --timeout passed first. For several jobs, the highest code.
"""

from __future__ import annotations

import time

from stoker import wire
from stoker.cli import output
from stoker.cli.options import Args, Option, parse
from stoker.cli.output.times import parse_duration
from stoker.cli.session import connect_existing, require_selectors
from stoker.cli.session.follow import is_stuck, report_failures, report_stuck
from stoker.client import reconnect
from stoker.client.client import Client
from stoker.wire import JsonObject

USAGE = ("wait [OPTIONS] JOB ...",)
OPTIONS = (
    Option("--any", None, "return when any of the jobs has ended"),
    Option("--all", None, "return when all jobs have ended (default)"),
    Option("-t/--timeout", "TIME", "stop waiting after 90s, 5m, 2h: exit code 101"),
    Option("-Q/--quiet", None, "print nothing", key="quiet"),
)
PROGRESS_SECONDS = 1.0
MAX_IDS = 2000
"""Largest number of jobs that are requested by id."""


def main(argv: list[str]) -> int:
    """Wait for the selected jobs; return the highest exit code."""
    args = parse(OPTIONS, argv, verb="wait")
    require_selectors(args, "wait")
    client = connect_existing()
    reply = wait(client, args)
    if args.flag("json"):
        output.emit(reply)
    views = [view for view in reply["jobs"] if view.get("result") is not None]
    quiet = args.flag("json") or args.flag("quiet")
    code = max((int(view["result"]) for view in views), default=0)
    if not quiet:
        report_failures(client, views)
    stuck = (wire.EXIT_FAILED if is_stuck(reply) else 0) if quiet else report_stuck(reply)
    if not reply["finished"] and not stuck:
        if not quiet:
            left = len(reply["jobs"]) - len(views)
            output.say(f"stoker: timeout; {output.counted(left, 'job')} not finished")
        return wire.EXIT_STILL_RUNNING
    return max(code, stuck)


def wait(client: Client, args: Args) -> JsonObject:
    """Return the reply of one long wait, or of the last of many short ones with progress."""
    select = fixed_selectors(client, args.words)
    timeout = args.text("timeout")
    deadline = time.monotonic() + parse_duration(timeout) if timeout is not None else None
    progress = output.is_terminal(2) and not args.flag("quiet") and not args.flag("json")
    was_connected = False
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        step = left
        if progress:
            step = PROGRESS_SECONDS if left is None else min(PROGRESS_SECONDS, left)
        reply = reconnect.wait(
            client, select, any_of=args.flag("any"), timeout=step, was_connected=was_connected
        )
        was_connected = True
        views = reply["jobs"]
        unfinished = sum(view.get("result") is None for view in views)
        if progress:
            output.show_progress("")
        has_timed_out = left is not None and left == step
        stuck = reply.get("notes") or len(reply.get("stuck") or ()) >= max(unfinished, 1)
        if reply["finished"] or has_timed_out or stuck:
            return reply
        # Of very many jobs only some are listed, so they cannot be counted.
        progress = progress and 1 <= len(views) <= MAX_IDS
        if progress:
            done = len(views) - unfinished
            output.show_progress(f"{done} of {output.counted(len(views), 'job')} done")


def fixed_selectors(client: Client, selectors: list[str]) -> list[str]:
    """Return selectors that mean the same jobs in later requests."""
    fixed = []
    for selector in selectors:
        sweep = _sweep_of_selector(client, selector)
        if sweep is not None:
            fixed.append(sweep)  # includes its future trials
        elif selector in {"last", "-1"}:
            reply = client.jobs([selector], limit=1)
            first, more = int(reply["jobs"][0]["id"]), int(reply.get("more") or 0)
            fixed.append(f"{first}-{first + more}" if more else str(first))
        elif selector.strip("0123456789,-:_"):
            reply = client.jobs([selector], limit=MAX_IDS)
            labels = [str(view["label"]) for view in reply["jobs"]]
            fixed += labels if labels and not reply.get("more") else [selector]
        else:
            fixed.append(selector)
    return fixed


def _sweep_of_selector(client: Client, selector: str) -> str | None:
    """Return the label of the sweep that `last` or a name means; None for other jobs."""
    is_last = selector in {"last", "-1"}
    if not is_last and (
        not selector.strip("0123456789,-:_") or selector == "all" or selector[:1] == "%"
    ):
        return None
    views = client.jobs([selector], limit=1)["jobs"]
    if not views:  # a sweep without trials
        return str(client.get_sweep(selector)["sweep"]["label"])
    is_sweep_name = is_last or views[0]["name"] == selector
    return str(views[0]["sweep"]) if is_sweep_name and views[0].get("sweep") is not None else None
