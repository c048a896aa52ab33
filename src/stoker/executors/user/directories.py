"""The directories of one user: claims, exits, scripts, logs, training reports, checkpoints."""

from __future__ import annotations

import os

NAMES = ("run", "exits", "scripts", "checkpoints", "library", "training", "logs")


class UserDirectories:
    """Paths below the directory that the gate made for a user; small, for the first moments."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.run, self.exits, self.scripts = f"{root}/run", f"{root}/exits", f"{root}/scripts"
        self.training = f"{root}/training"

    def create(self) -> None:
        """Create what is missing."""
        for name in NAMES:
            os.makedirs(f"{self.root}/{name}", 0o700, exist_ok=True)
