"""`grass show`: queues, their free devices and their jobs."""

from __future__ import annotations

from stoker import wire
from stoker.cli import output
from stoker.client import fast_json
from stoker.client.client import Client, connect
from stoker.client.errors import UsageError
from stoker.compat.arguments import EACH, ONCE, SWITCH, read_arguments, whole_number
from stoker.compat.grass import queues
from stoker.compat.grass.resources import grass_type, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

USAGE = """\
  grass show [QUEUE | --queue QUEUE] [--json | --table] [--limit N]

Show queues, their free devices and their jobs: a table on a terminal, JSON otherwise.

  --json      JSON, also on a terminal
  --table     a table, also in a pipe
  --limit N   at most N pending and N past jobs per queue (1000; in a table 20)
"""
OPTIONS = {"--queue": EACH, "--json": SWITCH, "--table": SWITCH, "--limit": ONCE}
MAX_JSON_JOBS, MAX_TABLE_JOBS = 1000, 20


def main(argv: list[str]) -> int:
    """Print one queue, or all."""
    args = read_arguments(argv, OPTIONS, "grass show")
    names = args.words + args.lists.get("--queue", [])
    if len(names) > 1:
        raise UsageError("grass show takes one queue, or none for all: grass show q1")
    if args.switches >= {"--json", "--table"}:
        raise UsageError("Give --json or --table, not both.")
    table = "--table" in args.switches or (not args.switches and output.is_terminal(1))
    text = args.values.get("--limit") or str(MAX_TABLE_JOBS if table else MAX_JSON_JOBS)
    limit = whole_number("--limit", text, 1, 1_000_000)
    client = connect()
    chosen = [queues.find_queue(client, names[0])] if names else client.queues()["queues"]
    views = [build_view(client, queue, limit) for queue in chosen]
    if table:
        from stoker.compat.grass.table import lines

        if not views:
            output.say("grass: there are no queues. Create one: grass create-queue NAME --json ...")
        elif printed := "\n".join(lines(views)):
            print(printed)
        return 0
    print(fast_json.pretty(views[0] if names else views))
    return 0


def build_view(client: Client, queue: dict[str, Any], limit: int) -> dict[str, Any]:
    """Return a queue with its devices and jobs."""
    resources: dict[str, dict[str, int | float]] = {}
    available: dict[str, dict[str, int | float]] = {}
    for device in queue["resources"]:
        kind, name = grass_type(device["type"]), str(device["device"])
        resources.setdefault(kind, {})[name] = number(device["capacity"])
        available.setdefault(kind, {})[name] = number(device["free"])
    name = queue["name"]
    running = client.jobs(queue=name, state="CONFIGURING,QUEUED,RUNNING,SUSPENDED,COMPLETING")
    waiting = client.jobs(queue=name, state="PENDING", limit=limit)
    past = client.history(queue=name, limit=limit)
    return {
        "name": name,
        "id": name,
        "order": "fifo" if queue["strict"] else "backfill",
        "resources": resources,
        "available": available,
        "future_jobs": [job(view) for view in waiting["jobs"]],
        "running_jobs": [job(view) for view in running["jobs"]],
        "past_jobs": [job(view) for view in past["jobs"]],
        "left_out": {"future_jobs": waiting["more"], "past_jobs": past["more"]},
    }


def job(view: dict[str, Any]) -> dict[str, Any]:
    """Return a job with the keys of grass."""
    args = view["request"]
    require = {grass_type(kind): number(amount) for kind, amount in args["resources"].items()}
    if args["gpus"]:
        require = {"gpu": number(args["gpus"]), **require}
    devices = {grass_type(kind): names for kind, names in view["devices"].items()}
    return {
        "id": view["id"],
        "cwd": view["directory"],
        "cmd": _words(view),
        "envs": _variables(view),
        "require": require,
        "status": status(view),
        "allocation": {kind: devices[kind] for kind in require if kind in devices},
        "node": ",".join(view["nodes"]) or None,
        "exit_code": view["exit_code"],
        "log": view["log"],
        "elapsed": view["elapsed"],
    }


def _words(view: dict[str, Any]) -> list[str]:
    """Return the words of a command; jobs not submitted with grass may be shell lines."""
    text = str(view["command"])
    if view["client"] != queues.NAME:
        return [text]
    from shlex import split

    return split(text)


def _variables(view: dict[str, Any]) -> list[str]:
    mark, _, names = str(view["comment"] or "").partition(" ")
    return names.split() if view["client"] == queues.NAME and mark == "env:" else []


def status(view: dict[str, Any]) -> str:
    """Return Created, Running, Finished, Cancelled or Failed with the exit code."""
    state = view["state"]
    if state not in wire.FINISHED:
        return "Created" if state == "PENDING" else "Running"
    named = {"COMPLETED": "Finished", "CANCELLED": "Cancelled"}.get(state)
    return named or f"Failed({view['result']})"
