"""Directories and files of attempts on this node."""

from __future__ import annotations

from msgspec import Struct

SLURM_TOOLS = "stoker/executors/slurm_tools"
"""The directory of `srun` and `scontrol` in the training library, for jobs of Slurm scripts."""


class ExecutorPaths(Struct, frozen=True):
    """The directories that the local executor uses."""

    run: str
    """Claim files."""
    exits: str
    """Exit logs, one per supervisor."""
    scripts: str
    terminals: str
    """Sockets of jobs with a terminal."""


def terminal_path(directory: str, job: int, attempt: int) -> str:
    """Return the path of the socket that serves the terminal of an attempt."""
    return f"{directory}/tty-{job}.{attempt}"
