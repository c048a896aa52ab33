"""Release held jobs, so that they can start."""

from __future__ import annotations

from stoker.cli.session import change_jobs

USAGE = ("release [OPTIONS] JOB ...",)
OPTIONS = ()


def main(argv: list[str]) -> int:
    """Release the selected jobs."""
    return change_jobs("release", argv, "released")
