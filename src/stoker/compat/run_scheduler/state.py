"""scheduler-state: list the jobs of run-scheduler."""

from __future__ import annotations

from stoker import places
from stoker.cli import output
from stoker.client.errors import UsageError
from stoker.client.route import listed_user
from stoker.compat.arguments import MANY, SWITCH, Arguments, read_arguments, whole_number
from stoker.compat.run_scheduler import NAME as CLIENT
from stoker.compat.run_scheduler import jobs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.client.client import Client

NAME = "scheduler-state"
HELP = """\
  scheduler-state [--all_users] [--nlast [N]] [--extended]

Lists jobs submitted with run-scheduler: all pending and running jobs, and the last that ended.

  --nlast [N]   only the N jobs submitted last (10)
  --extended    all options of each job
  --all_users   jobs of all users of this daemon
  --json        print JSON
  -h, --help    show this help

MEMORY is the memory reserved on each GPU / the largest measured use; LEFT is the estimated
remaining time."""
SWITCHES = ("--all_users", "--extended", "--json")
UNFINISHED = "PENDING,CONFIGURING,QUEUED,RUNNING,SUSPENDED,COMPLETING"
DEFAULT_COUNT = 10
MAX_JOBS = 100_000


def main(argv: list[str]) -> int:
    """List jobs."""
    words, last = _read_arguments(argv)
    output.wants_json = "--json" in words.switches
    client = jobs.client()
    user = listed_user(client.path) if client is not None else None
    if "--all_users" in words.switches:
        if client is None or client.path != places.system_socket():
            output.say(f"{NAME}: each user has a daemon of their own, so only your jobs are listed")
        user = None
    views = _listed_jobs(client, last, user) if client is not None else []
    if output.wants_json:
        output.emit({"jobs": views})
        return 0
    if not views:
        output.say(f"{NAME}: there are no jobs. Submit one with: run-scheduler")
        return 0
    from stoker.compat.run_scheduler import table

    if "--extended" in words.switches:
        print("\n\n".join("\n".join(table.extended(view)) for view in views))
    else:
        table.write(views)
    return 0


def _read_arguments(argv: list[str]) -> tuple[Arguments, int | None]:
    """Parse a command line; --nlast has an optional number."""
    spelled = [f"--{word[2:].replace('-', '_')}" if word[:2] == "--" else word for word in argv]
    words = read_arguments(spelled, {**dict.fromkeys(SWITCHES, SWITCH), "--nlast": MANY}, NAME)
    numbers = words.lists.get("--nlast")
    extra = words.words or (numbers or [])[1:]
    if extra:
        raise UsageError(f"{NAME} takes no {output.clean(extra[0])!r}. See: {NAME} --help")
    if numbers is None:
        return words, None
    return words, whole_number("--nlast", numbers[0], 1) if numbers else DEFAULT_COUNT


def _listed_jobs(client: Client, last: int | None, user: str | None) -> list[dict[str, Any]]:
    """Return the jobs to list, the newest last."""
    waiting = client.jobs(client=CLIENT, user=user, state=UNFINISHED, limit=MAX_JOBS)["jobs"]
    # History is by end time; the jobs submitted last are among the last 1000.
    ended = client.history(client=CLIENT, user=user, limit=max(1000, last or 0))["jobs"]
    ended.sort(key=lambda view: int(view["id"]))
    views = {view["id"]: view for view in [*(ended if last else ended[-DEFAULT_COUNT:]), *waiting]}
    listed = sorted(views.values(), key=lambda view: int(view["id"]))
    return listed[-last:] if last else listed
