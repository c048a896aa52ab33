"""`grass delete-queue`: delete a queue."""

from __future__ import annotations

from stoker.cli import output
from stoker.client.client import Client, connect
from stoker.client.errors import StokerError
from stoker.compat.arguments import SWITCH, read_arguments
from stoker.compat.grass import queues

USAGE = """\
  grass delete-queue QUEUE [--confirmed]

Delete a queue. Its running jobs continue and keep their devices until they end. A queue with
pending jobs is deleted only with --confirmed, which cancels them.
"""


def main(argv: list[str]) -> int:
    """Delete the queue; pending jobs require --confirmed."""
    args = read_arguments(argv, {"--confirmed": SWITCH}, "grass delete-queue")
    name = queues.only_queue(args, "delete-queue")
    client = connect()
    running = int(queues.find_queue(client, name)["running"])
    pending = _pending_jobs(client, name)
    if pending and "--confirmed" not in args.switches:
        jobs = output.counted(len(pending), "pending job")
        raise StokerError(
            f"{name} has {jobs}. To cancel {'it' if len(pending) == 1 else 'them'} "
            f"and delete the queue: grass delete-queue {name} --confirmed"
        )
    if pending:
        done = client.act("cancel", pending, only="waiting")["done"]
        output.say(f"grass: cancelled {output.counted(len(done), 'pending job')}")
    try:
        client.delete_queue(name)
    except StokerError as error:
        raise queues.translate_error(error) from None
    left = ""
    if running:
        jobs = output.counted(running, "running job")
        left = f"; {jobs} {'continues' if running == 1 else 'continue'} (see: stoker)"
    output.say(f"grass: deleted {name}{left}")
    return 0


def _pending_jobs(client: Client, name: str) -> list[str]:
    """Return the ids of the pending jobs of a queue."""
    reply = client.jobs(queue=name, state="PENDING", limit=1_000_000)
    return [str(job["id"]) for job in reply["jobs"]]
