"""Continue paused jobs."""

from __future__ import annotations

from stoker.cli.session import change_jobs

USAGE = ("resume [OPTIONS] JOB ...",)
OPTIONS = ()


def main(argv: list[str]) -> int:
    """Resume the selected jobs."""
    return change_jobs("resume", argv, "resumed")
