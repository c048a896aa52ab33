"""Report directories: one per attempt, HOME/training/JOB.ATTEMPT."""

from __future__ import annotations

import os

AttemptId = tuple[int, int]
"""A job and the number of its attempt."""


def attempt_name(key: AttemptId) -> str:
    """Return the name of an attempt's report directory."""
    return f"{key[0]}.{key[1]}"


def parse_attempt_name(name: str) -> AttemptId | None:
    """Return the attempt that a directory of this name belongs to, None for any other name."""
    job, _, attempt = name.partition(".")
    return (int(job), int(attempt)) if job.isdecimal() and attempt.isdecimal() else None


def report_directory(home: str, key: AttemptId) -> str:
    """Return the report directory of an attempt."""
    return f"{home}/training/{attempt_name(key)}"


def list_directory(path: str) -> list[str]:
    """Return the names in a directory; an empty list if it cannot be read."""
    try:
        return os.listdir(path)
    except OSError:
        return []
