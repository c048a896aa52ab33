"""Continue paused jobs."""

from __future__ import annotations

from stoker.cli.options import Option, parse
from stoker.cli.session import connect_existing, report, selected

USAGE = ("resume [OPTIONS] JOB ...",)
OPTIONS: tuple[Option, ...] = ()


def main(argv: list[str]) -> int:
    """Resume what was selected."""
    args = parse(OPTIONS, argv, verb="resume")
    select = selected(args, "resume")
    client = connect_existing()
    return report(client.resume(select), args, "resumed")
