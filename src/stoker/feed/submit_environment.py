"""What both ways to run a feed share: the environment of its jobs, and messages."""

from __future__ import annotations

import os

from stoker.cli.options.submission import job_environment
from stoker.client.submit_environment import current_directory, shell, umask

NO_GPU = "this machine has no GPU: one core per line (name devices with --gpus)"
DRAINING = "stoker: draining: running lines finish, no more are started"


def in_use_warning(name: str, foreign_user: str) -> str:
    """Return the warning for a device that another user or process has."""
    from stoker.core.foreign import in_words  # most feeds never need it

    return f"GPU {name} {in_words(foreign_user)}; it is used anyway because --gpus names it"


class SubmitEnvironment:
    """Directory, environment, shell and umask of the user."""

    def __init__(self) -> None:
        self.directory = current_directory()
        self.environment = job_environment(os.environ)
        self.shell = shell()
        self.umask = umask()
