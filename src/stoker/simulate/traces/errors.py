"""What is wrong with a recorded workload."""

from __future__ import annotations


class TraceError(Exception):
    """It cannot be read: one sentence with the file, the line, what was expected, what to do."""
