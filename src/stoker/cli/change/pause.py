"""Suspend running jobs; they keep their GPUs and their memory."""

from __future__ import annotations

from stoker.cli.options import Option, parse
from stoker.cli.session import connect_existing, print_result, require_selectors

USAGE = ("pause JOB ...",)
OPTIONS: tuple[Option, ...] = ()


def main(argv: list[str]) -> int:
    """Pause the selected jobs."""
    args = parse(OPTIONS, argv, verb="pause")
    select = require_selectors(args, "pause")
    return print_result(connect_existing().pause(select), args, "paused")
