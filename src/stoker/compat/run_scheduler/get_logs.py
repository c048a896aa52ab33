"""scheduler-get-logs: print the output of a job of run-scheduler, of all attempts."""

from __future__ import annotations

import sys

from stoker.cli import output
from stoker.client.errors import UsageError
from stoker.compat.arguments import SWITCH, read_arguments
from stoker.compat.run_scheduler import jobs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.client.client import Client

NAME = "scheduler-get-logs"
HELP = """\
  scheduler-get-logs JOB_ID

Prints the output of all attempts of a job.

  -f, --follow  follow until the job ends, and return its exit code
  -h, --help    show this help"""


def main(argv: list[str]) -> int:
    """Copy a log to stdout."""
    words = read_arguments(argv, {"--follow": SWITCH}, NAME)
    if len(words.words) > 1:
        raise UsageError(f"Only one job can be given: {NAME} {output.clean(words.words[0])}")
    client, (view,) = jobs.find_jobs(words.words, NAME)
    label = str(view["id"])
    if "--follow" in words.switches:
        from stoker.cli.session.follow import follow_to_end

        return follow_to_end(client, label, 1)
    reason = view.get("reason_text") or view.get("cause")
    why = f": {output.clean(reason)}" if reason else ""
    if not _began(view):
        output.say(f"{NAME}: {jobs.full_id(view)} has not started yet{why}")
        return 0
    if not _copy(client, view) and why:
        output.say(f"{NAME}: {jobs.full_id(view)} has no output{why}")
    from stoker.cli.session.follow import dismiss_failures

    dismiss_failures(client, [view])
    return 0


def _began(view: dict[str, Any]) -> list[int]:
    """Return the attempts that may have output."""
    attempts = {int(past["attempt"]) for past in view.get("attempts") or ()}
    if view["state"] != "PENDING" and view.get("started_at"):
        attempts.add(int(view["attempt"]))
    return sorted(attempts)


def _copy(client: Client, view: dict[str, Any]) -> bool:
    """Print the output of all attempts; return whether there was any."""
    found = False
    for attempt in _began(view):
        for piece in client.log(str(view["id"]), attempt=attempt):
            sys.stdout.buffer.write(piece)
            found = found or bool(piece)
    sys.stdout.buffer.flush()
    return found
