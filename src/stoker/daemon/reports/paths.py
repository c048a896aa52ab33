"""Report directories: one per attempt, HOME/training/JOB.ATTEMPT."""

from __future__ import annotations

import os

from stoker.core.model.job import AttemptId


def parse_attempt_name(name: str) -> AttemptId | None:
    """Return the attempt that a directory of this name belongs to, None for any other name."""
    job, _, attempt = name.partition(".")
    return AttemptId(int(job), int(attempt)) if job.isdecimal() and attempt.isdecimal() else None


def report_directory(home: str, key: AttemptId) -> str:
    """Return the report directory of an attempt."""
    return f"{home}/training/{key}"


def list_directory(path: str) -> list[str]:
    """Return the names in a directory; an empty list if it cannot be read."""
    try:
        return os.listdir(path)
    except OSError:
        return []
