"""Hold pending jobs: they do not start until `stoker release`."""

from __future__ import annotations

from stoker.cli.session import change_jobs

USAGE = ("hold [OPTIONS] JOB ...",)
OPTIONS = ()


def main(argv: list[str]) -> int:
    """Hold the selected jobs."""
    return change_jobs("hold", argv, "held")
