"""Cancel pending and running jobs.

The whole process tree of a running job gets SIGTERM, a grace time, then SIGKILL.
"""

from __future__ import annotations

from stoker.cli.options import Option, parse
from stoker.cli.output.progress import elapsed
from stoker.cli.session import confirm, connect_existing, print_result, require_selectors

USAGE = ("cancel [OPTIONS] JOB ...",)
OPTIONS = (Option("-y/--yes", None, "do not ask for confirmation", key="yes"),)


def main(argv: list[str]) -> int:
    """Cancel the selected jobs."""
    args = parse(OPTIONS, argv, verb="cancel")
    select = require_selectors(args, "cancel")
    client = connect_existing()
    if not confirm(args, client, "Cancel"):
        return 1
    with elapsed("cancelling"):
        reply = client.cancel(select)
    return print_result(reply, args, "cancelled")
