"""Predict the effect of another policy, other nodes or another priority.

Simulates the jobs of the last days and the current queue twice, without and with the changes, and
compares. Several changes are applied together. The real queue is not changed.

  stoker what-if --policy planner hysteresis=3
  stoker what-if --add gpus=4
  stoker what-if --remove node=b --days 30
  stoker what-if --priority 42=high
"""

from __future__ import annotations

from stoker.cli.options import Option, parse
from stoker.cli.output.progress import elapsed
from stoker.cli.session import connect_existing
from stoker.client.errors import NotFound, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

USAGE = (
    "what-if --policy NAME [PARAMETER=VALUE ...] [OPTIONS]",
    "what-if --add gpus=N | --remove node=NAME | --priority JOB=high [OPTIONS]",
)
OPTIONS = (
    Option("--policy", "NAME", "use this policy for every queue; see stoker policy --list"),
    Option("--add", "gpus=4", "add a node with 4 GPUs; node=2x8: two with 8 each", many=True),
    Option("--remove", "node=NAME", "remove this node", many=True),
    Option("--priority", "JOB=high", "job priority: high (above all), low, or a number", many=True),
    Option("--days", "N", "simulate jobs that ended in the last N days (7)"),
    Option("--html", "FILE", "write a page with plots"),
)  # fmt: skip
CHANGES = ("policy", "add", "remove", "priority")
MAX_JOBS = 1_000_000
"""Maximum number of jobs in a request."""
MAX_DAYS = 36500.0


def main(argv: list[str]) -> NoReturn:
    """Read the state of the daemon and run the simulator on it."""
    args = parse(OPTIONS, argv, verb="what-if")
    for word in args.words:
        if "=" not in word:
            raise UsageError(f"what-if takes options and PARAMETER=VALUE, not '{word}'.")
    if not any(args.values.get(key) for key in CHANGES):
        raise UsageError(
            "No change given. Write --policy NAME, --add gpus=4, --remove node=NAME or"
            " --priority JOB=high."
        )
    days = args.number("days", 7.0) or 0.0
    if not 0 < days <= MAX_DAYS:
        raise UsageError(f"--days takes a number of days above 0 and up to {MAX_DAYS:,.0f}.")
    with elapsed("reading the queue and the history"):
        state = _read_state(days, args.many("priority"), args.many("remove"))
    _pass_on_stdin(state)
    from stoker.cli.cluster.simulate import exec_simulator

    exec_simulator("what-if", args)


def _read_state(days: float, priorities: list[str], removals: list[str]) -> str:
    """Return what a replay needs, as JSON."""
    import time

    from stoker.cli.output.times import iso
    from stoker.client import fast_json

    client = connect_existing(autostart=False)
    nodes = client.nodes()["nodes"]
    _check_nodes(removals, [str(node["name"]) for node in nodes])
    names = [text.rpartition("=")[0] for text in priorities]
    selected = {
        name: [view["id"] for view in client.jobs([name])["jobs"]] for name in names if name
    }
    now = time.time()
    since = iso(now - days * 86400)
    live = [view for view in client.jobs(limit=MAX_JOBS)["jobs"] if not view["ended_at"]]
    return fast_json.dumps({
        "now": now,
        "days": days,
        "meant": selected,
        "history": client.history(since=since, limit=MAX_JOBS)["jobs"],
        "queue": live,
        "nodes": nodes,
        "gpus": client.gpus()["gpus"],
        "queues": client.queues()["queues"],
        "policies": client.policies()["queues"],
        "limits": client.limits()["limits"],
        "reservations": client.reservations()["reservations"],
    })  # fmt: skip


def _check_nodes(removals: list[str], names: list[str]) -> None:
    """Raise if a node to remove does not exist."""
    for text in removals:
        what, _, name = text.partition("=")
        if what == "node" and name and name not in names:
            existing = f"there are {', '.join(names)}" if names else "there is none"
            raise NotFound(f"There is no node '{name}'; {existing}.")


def _pass_on_stdin(text: str) -> None:
    """Make the text the stdin of the program that replaces this one."""
    import os
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)
        os.dup2(file.fileno(), 0)
