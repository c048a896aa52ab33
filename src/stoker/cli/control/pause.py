"""Suspend running jobs; they keep their GPUs and their memory."""

from __future__ import annotations

from stoker.cli.session import change_jobs

USAGE = ("pause JOB ...",)
OPTIONS = ()


def main(argv: list[str]) -> int:
    """Pause the selected jobs."""
    return change_jobs("pause", argv, "paused")
