"""Client verbs of `auto`, one function each."""

from __future__ import annotations

import sys

from stoker import wire
from stoker.cli import output
from stoker.client.errors import StokerError, UsageError
from stoker.compat.auto import tasks
from stoker.compat.auto.connect import ServerConnection, connect_server
from stoker.compat.auto.lookup import find_tasks
from stoker.compat.auto.options import DEFAULT_PRIORITY, NAME, parse_count, task_ids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.cli.options import Args
    from stoker.client.client import Client

SHELL = "/bin/sh"
"""Shell of all commands, independent of the user's shell."""
DEFAULT_RECORDS = 10_000
MAX_JOBS = 1_000_000
SUCCEEDED = "COMPLETED"
FAILED = "FAILED,TIMEOUT,OUT_OF_MEMORY,NODE_FAIL,DEADLINE,CANCELLED"


def run(args: Args) -> int:
    """Queue a task and print its id."""
    command = args.text("cmd")
    if command is None or not command.strip():
        raise UsageError('No command given. Example: auto run --cmd "COMMAND"')
    options: dict[str, object] = {
        "client": NAME,
        "queue": NAME,
        "gpus": str(parse_count(args, "num_gpus", 1, 0, 100_000)),
        "priority": str(
            DEFAULT_PRIORITY - parse_count(args, "priority", DEFAULT_PRIORITY, -(10**9))
        ),
    }
    for key, name in (("cpus", "cpus"), ("memory", "mem")):
        if args.text(key) is not None:
            options[name] = args.text(key)
    with connect_server(args) as server:
        submission = {
            "options": options,
            "what": {"line": command},
            "shell": SHELL,
            **_job_environment(server, args.text("chdir")),
        }
        try:
            reply = server.client.submit(submission)
        except StokerError as error:
            if error.code == "queue_full":
                return _report_queue_full(server.client, args)
            if error.code == "impossible":
                error.exit_code = wire.EXIT_USAGE  # the request is invalid for every server
            raise
    if args.flag("json"):
        output.emit({"id": reply["first"], "warnings": reply["warnings"]})
        return 0
    for warning in reply["warnings"]:
        output.say(f"auto: {warning}")
    print(f"Task id: {reply['first']}")
    return 0


def _job_environment(server: ServerConnection, chdir: str | None) -> dict[str, Any]:
    """Return directory and environment of a task: the local ones if the server is local."""
    from stoker.cli.options.environment import job_environment
    from stoker.cli.options.submission import absolute_path
    from stoker.client.submit_environment import current_directory, umask

    if server.is_remote:
        if chdir is not None and not chdir.startswith("/"):
            raise UsageError("On another host, --chdir takes an absolute path.")
        note = server.note()
        return {"directory": chdir or note.get("directory") or "/", "own_environment": True}
    import os

    directory = absolute_path(os.path.expanduser(chdir)) if chdir else None
    return {
        "directory": current_directory(directory) if directory is None else directory,
        "environment": job_environment(os.environ),
        "umask": umask(),
    }


def _report_queue_full(client: Client, args: Args) -> int:
    """Print the message that existing scripts look for."""
    maximum = next((q["max_waiting"] for q in client.queues()["queues"] if q["name"] == NAME), None)
    message = f"Reaching the maximum number ({maximum}) of pending tasks to run!"
    if args.flag("json"):
        raise StokerError(message, code="queue_full")
    print(message)
    return wire.EXIT_FAILED


def status(args: Args) -> int:
    """Print running and pending tasks."""
    with connect_server(args) as server:
        views = server.client.jobs(client=NAME, state=tasks.UNFINISHED, limit=MAX_JOBS)["jobs"]
    pending = [view for view in views if view["state"] == "PENDING"]
    running = [view for view in views if view["state"] != "PENDING"]
    if args.flag("json"):
        output.emit({
            "running": [tasks.task(view) for view in running],
            "pending": [tasks.task(view) for view in pending],
        })  # fmt: skip
        return 0
    print("Runner Status:\nRunning Tasks:")
    tasks.write(running, tasks.RUNNING, verbose=args.flag("verbose"))
    print("Pending Tasks:")
    tasks.write(pending, tasks.PENDING)
    return 0


def cancel(args: Args) -> int:
    """Cancel pending tasks."""
    hint = "it is running; to terminate it: auto kill"
    return _end_tasks(args, "waiting", "Canceled Tasks:", tasks.PENDING, {"it is running": hint})


def kill(args: Args) -> int:
    """Terminate running tasks: TERM, a grace time, KILL."""
    hint = "it is not running; to cancel it: auto cancel"
    return _end_tasks(args, "running", "Killed Tasks:", tasks.RUNNING, {"it is not running": hint})


def _end_tasks(
    args: Args, only: str, heading: str, columns: tuple[Any, ...], hints: dict[str, str]
) -> int:
    """Cancel tasks; report those that could not be cancelled."""
    ids = task_ids(args)
    with connect_server(args) as server:
        views = find_tasks(server.client, ids)
        # In one request: GPUs of one task must not start another that is then cancelled too.
        select = [str(id) for id in views]
        reply = server.client.act("cancel", select, client=NAME, only=only) if select else {}
    left = {id: "there is no such task" for id in ids if id not in views}
    left |= {
        skipped["id"]: hints.get(skipped["why"], skipped["why"])
        for skipped in reply.get("skipped", ())
    }
    done = [view for id, view in views.items() if id not in left]
    if args.flag("json"):
        gone = [tasks.task(view) for view in done]
        output.emit({"done": gone, "left": [{"id": id, "why": why} for id, why in left.items()]})
        return wire.EXIT_FAILED if left else 0
    print(heading)
    tasks.write(done, columns)
    sys.stdout.flush()
    for id, why in left.items():
        output.say(f"auto: task {id} unchanged: {why}")
    return wire.EXIT_FAILED if left else 0


def history(args: Args) -> int:
    """Print finished tasks, or clear the history."""
    requested = parse_count(args, "num_records", -1, -1)
    if args.flag("clear"):
        return clean(args)
    failed = args.flag("fail")
    with connect_server(args) as server:
        kept = int(server.note().get("records", DEFAULT_RECORDS))
        limit = kept if requested < 0 else min(requested, kept)
        views = (
            _finished_tasks(server.client, FAILED if failed else SUCCEEDED, limit) if limit else []
        )
    if args.flag("json"):
        output.emit([tasks.task(view) for view in views])
        return 0
    print("Failed Tasks:" if failed else "Succeed Tasks:")
    columns = tasks.FAILED if failed else tasks.SUCCEEDED
    tasks.write(views, columns, verbose=args.flag("verbose"))
    return 0


def _finished_tasks(client: Client, states: str, count: int) -> list[dict[str, Any]]:
    """Return the last finished tasks, oldest first, without those that never started."""
    limit = count
    while True:
        reply = client.history(client=NAME, state=states, limit=limit)
        finished = [view for view in reply["jobs"] if not _never_ran(view)]
        if len(finished) >= count or not reply.get("more") or limit >= MAX_JOBS:
            return finished[-count:]
        limit = min(limit * 4 + 100, MAX_JOBS)


def _never_ran(view: dict[str, Any]) -> bool:
    return view["state"] == "CANCELLED" and view["started_at"] is None


def clean(args: Args) -> int:
    """Clear the history of finished tasks."""
    with connect_server(args) as server:
        server.client.hide_history(NAME)
    if args.flag("json"):
        output.emit({"cleared": NAME})
    else:
        output.say("auto: history cleared; stoker history still lists the tasks")
    return 0


def wait(args: Args) -> int:
    """Wait for tasks to end; return the highest exit code."""
    from stoker.cli.output.times import parse_duration
    from stoker.client.reconnect import wait as wait_for_jobs

    text = args.text("timeout")
    seconds = parse_duration(text) if text is not None else None
    ids = task_ids(args)
    with connect_server(args) as server:
        _require_tasks(server.client, ids)
        reply = wait_for_jobs(server.client, [str(id) for id in ids], timeout=seconds)
    views = [view for view in reply["jobs"] if view["result"] is not None]
    if args.flag("json"):
        output.emit([tasks.task(view) for view in reply["jobs"]])
    if not reply["finished"]:
        left = len(reply["jobs"]) - len(views)
        if not args.flag("json"):
            output.say(f"auto: timeout; {output.counted(left, 'task')} not finished")
        return wire.EXIT_STILL_RUNNING
    return max(int(view["result"]) for view in views)


def logs(args: Args) -> int:
    """Print the output of tasks."""
    from stoker.client import reconnect

    ids = task_ids(args)
    with connect_server(args) as server:
        views = _require_tasks(server.client, ids)
        if args.flag("path"):
            print("\n".join(str(view["log"]) for view in views))
            return 0
        for id in ids:
            if args.flag("follow"):
                reconnect.copy(reconnect.follow_log(server.client, str(id)), sys.stdout.buffer)
                continue
            for piece in server.client.log(str(id)):
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    return 0


def _require_tasks(client: Client, ids: list[int]) -> list[dict[str, Any]]:
    """Return the tasks with these ids; raise StokerError for an unknown id."""
    views = find_tasks(client, ids)
    for id in ids:
        if id not in views or views[id]["client"] != NAME:
            raise StokerError(f"There is no task {id}.", wire.EXIT_NOT_FOUND, "not_found")
    return list(views.values())
