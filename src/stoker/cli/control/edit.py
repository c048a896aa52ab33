"""Change pending jobs: `edit 42 --gpus 2 --priority 5`; without options, in $EDITOR.

--time and --priority also change running jobs; the time limit counts from the start of the job.
"""

from __future__ import annotations

from stoker import wire
from stoker.cli import output
from stoker.cli.options import Args, Option, parse
from stoker.cli.options.job import JOB, job_options
from stoker.cli.session import (
    ask_yes_no,
    connect_existing,
    format_labels,
    may_ask,
    print_result,
    require_selectors,
)
from stoker.client.client import Client
from stoker.client.errors import UsageError

USAGE = ("edit JOB ... [OPTIONS]",)
OPTIONS = (*JOB, Option("-y/--yes", None, "do not ask"))


def main(argv: list[str]) -> int:
    """Apply the options, or those from an editor."""
    args = parse(OPTIONS, argv, verb="edit")
    select = require_selectors(args, "edit")
    options = job_options(args)
    options.pop("yes", None)
    client = connect_existing()
    if not options:
        if not (output.is_terminal(0) and output.is_terminal(1)):
            raise UsageError("Nothing to change. For example: stoker edit 42 --priority 5")
        from stoker.cli.session.editor import edit_in_editor

        views = client.jobs(select)["jobs"]
        if len(views) != 1:
            raise UsageError("Only one job can be edited in an editor; give options for several.")
        options = edit_in_editor(views[0])
        if not options:
            return print_result({}, args, "changed")
    if not _confirm_time_limit(client, select, options, args):
        return wire.EXIT_FAILED
    return print_result(client.edit(select, options), args, "changed")


def _confirm_time_limit(
    client: Client, select: list[str], options: dict[str, object], args: Args
) -> bool:
    """On a terminal, ask before a new time limit terminates running jobs."""
    if "time" not in options or not may_ask(args):
        return True
    overdue = client.edit(select, options, dry_run=True)["overdue"]
    if not overdue:
        return True
    end = "it" if len(overdue) == 1 else "them"
    return ask_yes_no(
        f"{format_labels(overdue)} already ran longer than that: this ends {end} as timed out. "
        "Continue?"
    )
