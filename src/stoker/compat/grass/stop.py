"""`grass stop`: stop the daemon; running jobs continue."""

from __future__ import annotations

from stoker import wire
from stoker.cli import output
from stoker.client.client import connect
from stoker.client.errors import DaemonUnreachable, StokerError
from stoker.compat.arguments import SWITCH, read_arguments
from stoker.compat.grass import queues

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.client.client import Client

USAGE = """\
  grass stop [--confirmed]

Stop the daemon. Running jobs continue, and the next daemon recovers them; pending jobs and queues
are kept. The daemon is that of stoker: if it also has jobs that were not submitted with grass, it
is stopped only with --confirmed.
"""


def main(argv: list[str]) -> int:
    """Stop the daemon; jobs not submitted with grass require --confirmed."""
    args = read_arguments(argv, {"--confirmed": SWITCH}, "grass stop")
    queues.reject_words(args, "stop")
    client = connect(autostart=False)
    try:
        others, waiting = _counted(client)
    except DaemonUnreachable:
        output.say("grass: no daemon is running")
        return 0
    if others and "--confirmed" not in args.switches:
        jobs = output.counted(others, "unfinished job")
        raise StokerError(
            f"The daemon also has {jobs} not submitted with grass (see: stoker). "
            "To stop it anyway: grass stop --confirmed"
        )
    from stoker.cli.admin import daemon

    code = daemon.main(["stop"])
    if waiting:
        verb = "stays" if waiting == 1 else "stay"
        output.say(f"grass: {output.counted(waiting, 'pending job')} {verb} queued")
    return code


def _counted(client: Client) -> tuple[int, int]:
    """Return the unfinished jobs not submitted with grass, and all pending jobs."""
    unfinished = "PENDING,CONFIGURING,QUEUED,RUNNING,SUSPENDED,COMPLETING"
    reply = client.jobs(client=queues.NAME, state=unfinished, limit=1)
    ours = len(reply["jobs"]) + int(reply["more"])
    counts = reply["counts"]
    total = sum(count for state, count in counts.items() if state not in wire.FINISHED)
    return total - ours, int(counts.get("PENDING", 0))
