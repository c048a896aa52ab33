"""Change pending jobs: `edit 42 --gpus 2 --priority 5`; without options, in $EDITOR."""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.jobflags import JOB, job_options
from stoker.cli.options import parse
from stoker.cli.session import existing, report, selected
from stoker.client.errors import UsageError

USAGE = ("edit JOB ... [OPTIONS]",)
OPTIONS = JOB


def main(argv: list[str]) -> int:
    """Apply the options given, or those that come out of an editor."""
    args = parse(OPTIONS, argv, verb="edit")
    select = selected(args, "edit")
    options = job_options(args)
    client = existing()
    if not options:
        if not (output.is_terminal(0) and output.is_terminal(1)):
            raise UsageError("What should change? For example: stoker edit 42 --priority 5")
        from stoker.cli.editor import edited

        views = client.jobs(select)["jobs"]
        if len(views) != 1:
            raise UsageError("Only one job can be edited in an editor; give options for several.")
        options = edited(views[0])
        if not options:
            return report({}, args, "changed")
    return report(client.edit(select, options), args, "changed")
