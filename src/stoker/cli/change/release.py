"""Release held jobs, so that they can start."""

from __future__ import annotations

from stoker.cli.options import Option, parse
from stoker.cli.session import connect_existing, report, selected

USAGE = ("release [OPTIONS] JOB ...",)
OPTIONS: tuple[Option, ...] = ()


def main(argv: list[str]) -> int:
    """Release what was selected."""
    args = parse(OPTIONS, argv, verb="release")
    select = selected(args, "release")
    client = connect_existing()
    return report(client.release(select), args, "released")
