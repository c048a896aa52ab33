"""Continue paused jobs."""

from __future__ import annotations

from stoker.cli.options import Option, parse
from stoker.cli.session import connect_existing, print_result, require_selectors

USAGE = ("resume [OPTIONS] JOB ...",)
OPTIONS: tuple[Option, ...] = ()


def main(argv: list[str]) -> int:
    """Resume the selected jobs."""
    args = parse(OPTIONS, argv, verb="resume")
    select = require_selectors(args, "resume")
    client = connect_existing()
    return print_result(client.resume(select), args, "resumed")
