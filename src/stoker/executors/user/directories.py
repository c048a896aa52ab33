"""The directories of one user: claims, exits, scripts, logs, training reports, checkpoints."""

from __future__ import annotations

import os

NAMES = ("run", "exits", "scripts", "checkpoints", "library", "training", "logs")

BOOT_ID = "/proc/sys/kernel/random/boot_id"


class UserDirectories:
    """Paths below the directory that the gate made for a user; small, for the first moments."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.run, self.exits, self.scripts = f"{root}/run", f"{root}/exits", f"{root}/scripts"
        self.training = f"{root}/training"

    def create(self) -> None:
        """Create what is missing."""
        if not os.path.lexists(self.run) and not os.path.lexists(self.exits):
            self._create_run()
        for name in NAMES:
            os.makedirs(f"{self.root}/{name}", 0o700, exist_ok=True)

    def _create_run(self) -> None:
        """Create the directory of claims of a user without any attempts, marked as complete.

        Both at once: without the mark, an attempt without a claim might have been started.
        """
        from stoker.executors.local.recovery import mark_complete

        new = f"{self.run}.{os.getpid()}"
        os.mkdir(new, 0o700)
        mark_complete(new, read_boot())
        os.rename(new, self.run)


def read_boot() -> str:
    """Return the id of this boot of the machine."""
    with open(BOOT_ID) as file:
        return file.read().strip()
