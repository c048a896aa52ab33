"""Shared locks on files that other users can reach; supervisors import it, so it is small."""

from __future__ import annotations

import errno
import fcntl
import os
import time


def lock_again(path: str) -> int:
    """Lock a file that the daemon has locked for an attempt, for its process to inherit."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        lock_shared(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def lock_shared(fd: int, path: str) -> None:
    """Take a shared lock; another daemon may hold it for an instant to check it."""
    for delay in (0.001, 0.002, 0.004, None):
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if delay is None:
                text = f"another process has locked {path}; lslocks shows which"
                raise BlockingIOError(errno.EAGAIN, text) from None
            time.sleep(delay)
        else:
            return
