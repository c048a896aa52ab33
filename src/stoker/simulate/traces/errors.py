"""What is wrong with a recorded workload."""

from __future__ import annotations

from pathlib import Path


class TraceError(Exception):
    """It cannot be read: one sentence with the file, the line, what was expected, what to do."""


def invalid_line(path: Path, line: int, why: object) -> TraceError:
    """Return the error for a line that cannot be read."""
    return TraceError(f"{path}, line {line}: {why}; correct or delete the line.")
