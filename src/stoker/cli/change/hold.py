"""Hold pending jobs: they do not start until `stoker release`."""

from __future__ import annotations

from stoker.cli.options import Option, parse
from stoker.cli.session import connect_existing, report, selected

USAGE = ("hold [OPTIONS] JOB ...",)
OPTIONS: tuple[Option, ...] = ()


def main(argv: list[str]) -> int:
    """Hold what was selected."""
    args = parse(OPTIONS, argv, verb="hold")
    select = selected(args, "hold")
    client = connect_existing()
    return report(client.hold(select), args, "held")
