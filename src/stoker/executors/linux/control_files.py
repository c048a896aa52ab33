"""Control files: `stop` and `stop_at`, which the training library reads in its report directory."""

from __future__ import annotations

import contextlib
import logging
import os

STOP = "stop"
"""Requests a stop at the next checkpoint; the content is the reason."""
STOP_AT = "stop_at"
"""The epoch before which all parts of the attempt stop."""

logger = logging.getLogger(__name__)


def write(directory: str, name: str, text: str, label: str) -> None:
    """Write a control file atomically; log a failure with the job's label."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        fd = os.open(f"{directory}/{name}.new", flags | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, f"{text}\n".encode())
        finally:
            os.close(fd)
        os.rename(f"{directory}/{name}.new", f"{directory}/{name}")
    except OSError as error:
        logger.warning("cannot write %s/%s for job %s: %s", directory, name, label, error)


def remove_stop(directory: str) -> None:
    """Withdraw a stop request, unless the processes have already agreed on a stop epoch."""
    if not os.path.lexists(f"{directory}/{STOP_AT}"):
        with contextlib.suppress(OSError):
            os.unlink(f"{directory}/{STOP}")
