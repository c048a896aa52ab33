"""`scheduler-cancel-job`: end jobs of run-scheduler for good."""

from __future__ import annotations

from stoker import wire
from stoker.cli import output
from stoker.client.errors import UsageError
from stoker.frontdoors.execute_batch.words import SWITCH, read
from stoker.frontdoors.run_scheduler import jobs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "scheduler-cancel-job"
HELP = """\
  scheduler-cancel-job JOB_ID ...

Ends jobs, whether they wait or run: what they started is told to end and, if it does not, killed.
Their snapshots stay. Only jobs that came through run-scheduler are touched; if one of the ids
means none of these, nothing is done.

  --json        print one JSON value
  -h, --help    this text"""


def main(argv: list[str]) -> int:
    """End these jobs."""
    words = read(argv, {"--json": SWITCH, "--help": SWITCH, "-h": SWITCH}, NAME)
    if words.switches & {"-h", "--help"}:
        print(HELP)
        return 0
    output.wants_json = "--json" in words.switches
    if not words.free:
        raise UsageError(f"Which job? Type: {NAME} JOB_ID. To list them: scheduler-state")
    client = jobs.client()
    views = {view["id"]: view for view in (jobs.found(client, word) for word in words.free)}
    assert client is not None
    reply = client.cancel([str(id) for id in views])
    if output.wants_json:
        output.emit(reply)
    else:
        _tell(views, reply)
    return wire.EXIT_OK if reply["done"] else wire.EXIT_FAILED


def _tell(views: dict[int, dict[str, Any]], reply: dict[str, Any]) -> None:
    """Say what was done, and what was not and why."""
    for job in reply["done"]:
        view = views[job["id"]]
        output.say(f"{NAME}: {jobs.unique(view)} ({output.clean(view['name'])}) is cancelled")
    for job in reply["skipped"]:
        output.say(f"{NAME}: {jobs.unique(views[job['id']])} is left as it is: {job['why']}")
