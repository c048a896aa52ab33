"""Hold pending jobs: they do not start until `stoker release`."""

from __future__ import annotations

from stoker.cli.options import Option, parse
from stoker.cli.session import connect_existing, print_result, require_selectors

USAGE = ("hold [OPTIONS] JOB ...",)
OPTIONS: tuple[Option, ...] = ()


def main(argv: list[str]) -> int:
    """Hold the selected jobs."""
    args = parse(OPTIONS, argv, verb="hold")
    select = require_selectors(args, "hold")
    client = connect_existing()
    return print_result(client.hold(select), args, "held")
