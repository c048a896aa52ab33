"""scheduler-cancel-job: cancel jobs of run-scheduler."""

from __future__ import annotations

from stoker import wire
from stoker.cli import output
from stoker.compat.arguments import SWITCH, read_arguments
from stoker.compat.run_scheduler import jobs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "scheduler-cancel-job"
HELP = """\
  scheduler-cancel-job JOB_ID ...

Cancels pending and running jobs: their processes are terminated, and killed if they do not end.
Snapshots are kept. Only jobs submitted with run-scheduler are cancelled; if one of the ids is not
such a job, nothing is cancelled.

  --json        print JSON
  -h, --help    show this help"""


def main(argv: list[str]) -> int:
    """Cancel jobs."""
    words = read_arguments(argv, {"--json": SWITCH}, NAME)
    output.wants_json = "--json" in words.switches
    client, selected = jobs.find_jobs(words.words, NAME)
    views = {view["id"]: view for view in selected}
    reply = client.cancel([str(id) for id in views])
    if output.wants_json:
        output.emit(reply)
    else:
        _tell(views, reply)
    return wire.EXIT_OK if reply["done"] else wire.EXIT_FAILED


def _tell(views: dict[int, dict[str, Any]], reply: dict[str, Any]) -> None:
    """Report the cancelled jobs, and the others with the reason."""
    for job in reply["done"]:
        view = views[job["id"]]
        output.say(f"{NAME}: {jobs.full_id(view)} ({output.clean(view['name'])}) is cancelled")
    for job in reply["skipped"]:
        output.say(f"{NAME}: {jobs.full_id(views[job['id']])} is unchanged: {job['why']}")
