"""Wait for jobs to end; return their exit code.

The code is the job's own; 128+N when signal N killed it, 124 when its time was up, 143 when it
was cancelled, 101 when --timeout passed first. Over several jobs: the highest.
"""

from __future__ import annotations

import time

from stoker import wire
from stoker.cli import output
from stoker.cli.follow import concluded, stuck_code
from stoker.cli.options import Args, Option, parse
from stoker.cli.session import existing
from stoker.cli.times import parse_duration
from stoker.client.client import Client
from stoker.client.errors import ConnectionBroken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

USAGE = ("wait [OPTIONS] JOB ...",)
OPTIONS = (
    Option("--any", None, "return when one of them has ended"),
    Option("--all", None, "return when all have ended (the default)"),
    Option("-t/--timeout", "TIME", "give up after 90s, 5m, 2h: exit code 101"),
    Option("-Q/--quiet", None, "say nothing", key="quiet"),
)
SLICE = 1.0


def main(argv: list[str]) -> int:
    """Wait for what was selected."""
    args = parse(OPTIONS, argv, verb="wait")
    client = existing()
    reply = wait(client, args)
    if args.flag("json"):
        output.emit(reply)
    views = [view for view in reply["jobs"] if view.get("result") is not None]
    quiet = args.flag("json") or args.flag("quiet")
    code = max((int(view["result"]) for view in views), default=0)
    if not quiet:
        concluded(client, views)
    stuck = (wire.EXIT_FAILED if reply.get("stuck") else 0) if quiet else stuck_code(reply)
    if not reply["finished"] and not stuck:
        if not quiet:
            left = len(reply["jobs"]) - len(views)
            output.say(f"stoker: time is up; {output.counted(left, 'job')} not finished")
        return wire.EXIT_STILL_RUNNING
    return max(code, stuck)


def wait(client: Client, args: Args) -> dict[str, Any]:
    """Return the reply of the last wait: one long one, or short ones with progress between."""
    select = args.words or ["all"]
    timeout = args.text("timeout")
    deadline = time.monotonic() + parse_duration(timeout) if timeout is not None else None
    progress = output.is_terminal(2) and not args.flag("quiet") and not args.flag("json")
    pause = SLICE
    broken = 0
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        step = left if not progress else pause if left is None else min(pause, left)
        try:
            reply = client.wait(select, any_of=args.flag("any"), timeout=step)
        except ConnectionBroken:
            broken += 1  # the daemon is being restarted; the jobs go on, and so do we
            if broken > 50:
                raise
            time.sleep(0.2)
            continue
        if progress:
            output.progress("")
        if reply["finished"] or reply.get("stuck") or (left is not None and left == step):
            return reply
        if progress:
            done = sum(view.get("result") is not None for view in reply["jobs"])
            output.progress(f"{done} of {output.counted(len(reply['jobs']), 'job')} done")
            pause = max(SLICE, len(reply["jobs"]) / 500)  # a long list costs time to ask for
