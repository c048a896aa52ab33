"""`scheduler-state`: the jobs of run-scheduler and how they stand."""

from __future__ import annotations

from stoker.cli import output
from stoker.client.errors import UsageError
from stoker.compat.execute_batch.arguments import BatchArguments
from stoker.compat.run_scheduler import NAME as DOOR
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
SWITCHES = ("--all_users", "--extended", "--json", "--help", "-h")
UNFINISHED = "PENDING,CONFIGURING,QUEUED,RUNNING,SUSPENDED,COMPLETING"
USUAL = 10
MOST = 100_000


def main(argv: list[str]) -> int:
    """List jobs."""
    words, last = _typed(argv)
    if words.switches & {"-h", "--help"}:
        print(HELP)
        return 0
    output.wants_json = "--json" in words.switches
    if "--all_users" in words.switches:
        output.say(f"{NAME}: each user has a daemon of their own, so only your jobs are listed")
    client = jobs.client()
    views = _chosen(client, last) if client is not None else []
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


def _typed(argv: list[str]) -> tuple[BatchArguments, int | None]:
    """Take a command line apart; --nlast may stand alone or have a number."""
    from stoker.compat.execute_batch.arguments import MANY, SWITCH, read

    spelled = [f"--{word[2:].replace('-', '_')}" if word[:2] == "--" else word for word in argv]
    words = read(spelled, {**dict.fromkeys(SWITCHES, SWITCH), "--nlast": MANY}, NAME)
    numbers = words.lists.get("--nlast")
    extra = words.free or (numbers or [])[1:]
    if extra:
        raise UsageError(f"{NAME} takes no {output.clean(extra[0])!r}. See: {NAME} --help")
    if numbers is None:
        return words, None
    text = numbers[0] if numbers else str(USUAL)
    if not (text.isascii() and text.isdecimal() and len(text) <= 6) or not int(text):
        raise UsageError(f"--nlast takes a whole number above 0, not {output.clean(text)!r}.")
    return words, int(text)


def _chosen(client: Client, last: int | None) -> list[dict[str, Any]]:
    """Return the jobs to show, the newest last."""
    waiting = client.jobs(client=DOOR, state=UNFINISHED, limit=MOST)["jobs"]
    # The newest to end are not the newest to be submitted, but they are among them.
    ended = client.history(client=DOOR, limit=max(1000, last or 0))["jobs"]
    ended.sort(key=lambda view: int(view["id"]))
    views = {view["id"]: view for view in [*(ended if last else ended[-USUAL:]), *waiting]}
    found = sorted(views.values(), key=lambda view: int(view["id"]))
    return found[-last:] if last else found
