"""`scheduler-cancel-job`: end a job of run-scheduler for good."""

from __future__ import annotations

from stoker import wire
from stoker.cli import output
from stoker.frontdoors.execute_batch.words import SWITCH, read
from stoker.frontdoors.run_scheduler import jobs

NAME = "scheduler-cancel-job"
HELP = """\
  scheduler-cancel-job JOB_ID

Ends a job, whether it waits or runs: what it started is told to end and, if it does not, killed.
Its snapshots stay. Only jobs that came through run-scheduler are touched.

  --json        print one JSON value
  -h, --help    this text"""


def main(argv: list[str]) -> int:
    """End one job."""
    words = read(argv, {"--json": SWITCH, "--help": SWITCH, "-h": SWITCH}, NAME)
    if words.switches & {"-h", "--help"}:
        print(HELP)
        return 0
    output.wants_json = "--json" in words.switches
    word = jobs.only_word(words.free, NAME)
    client = jobs.client()
    view = jobs.found(client, word)
    assert client is not None
    reply = client.cancel([str(view["id"])])
    if output.wants_json:
        output.emit(reply)
    elif reply["done"]:
        output.say(f"{NAME}: {jobs.unique(view)} ({output.clean(view['name'])}) is cancelled")
    for job in [] if output.wants_json else reply["skipped"]:
        output.say(f"{NAME}: {jobs.unique(view)} is left as it is: {job['why']}")
    return wire.EXIT_OK if reply["done"] else wire.EXIT_FAILED
