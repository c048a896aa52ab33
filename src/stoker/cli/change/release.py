"""Release held jobs, so that they can start."""

from __future__ import annotations

from stoker.cli.options import Option, parse
from stoker.cli.session import connect_existing, print_result, require_selectors

USAGE = ("release [OPTIONS] JOB ...",)
OPTIONS: tuple[Option, ...] = ()


def main(argv: list[str]) -> int:
    """Release the selected jobs."""
    args = parse(OPTIONS, argv, verb="release")
    select = require_selectors(args, "release")
    client = connect_existing()
    return print_result(client.release(select), args, "released")
