"""The directories of one user: claims, exits, scripts, logs, training reports, checkpoints."""

from __future__ import annotations

import os

PRIVATE, READABLE = ("run", "exits", "scripts", "checkpoints", "library"), ("logs",)
"""The daemon reads logs with the rights of its group, and nothing else."""


class UserDirectories:
    """Paths below the directory that the gate made for a user; small, for the first moments."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.run, self.exits, self.scripts = f"{root}/run", f"{root}/exits", f"{root}/scripts"
        self.training = f"{root}/training"

    def create(self) -> None:
        """Create what is missing."""
        for name in (*PRIVATE, "training"):
            os.makedirs(f"{self.root}/{name}", 0o700, exist_ok=True)
        for name in READABLE:
            path = f"{self.root}/{name}"
            os.makedirs(path, 0o750, exist_ok=True)
            # Whatever the umask is; setgid, so that logs belong to the group of the daemon.
            os.chmod(path, 0o2750)  # noqa: S103 - its group is the daemon's
