"""What both ways to run a feed share: the environment of its jobs, and messages."""

from __future__ import annotations

import os

from stoker.cli.options.environment import job_environment
from stoker.client.submit_environment import submit_fields
from stoker.wire import JsonObject

NO_GPU = "this machine has no GPU: one core per line (name devices with --gpus)"
DRAINING = "stoker: draining: running lines finish, no more are started"


def in_use_warning(name: str, foreign_user: str) -> str:
    """Return the warning for a device that another user or process has."""
    from stoker.core.measurement.foreign_use import in_words  # most feeds never need it

    return f"GPU {name} {in_words(foreign_user)}; it is used anyway because --gpus names it"


def submit_environment() -> JsonObject:
    """Return directory, environment, shell and umask of the user, as in a submission."""
    return submit_fields(job_environment(os.environ))
