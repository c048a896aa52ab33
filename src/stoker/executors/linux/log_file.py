"""Opens log files of attempts."""

from __future__ import annotations

import contextlib
import os
import stat


def empty_logs(*paths: str | None) -> None:
    """Truncate those log files that exist; others, such as terminals, stay as they are."""
    for path in paths:
        if path is not None:
            with contextlib.suppress(OSError):
                os.truncate(path, 0)


def open_log(path: str, mode: int = 0o666) -> int:
    """Open a log file for appending; its directory is created where it is missing."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, flags, mode)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, mode)


def open_regular(path: str) -> int | None:
    """Open a regular file for reading; return None for a link, a fifo or anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    return fd
