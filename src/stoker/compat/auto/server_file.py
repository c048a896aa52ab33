"""ServerFile: file in the runtime directory that says where the server of this user is.

The server holds a lock on it as long as it lives, so that the file of a killed server is
recognised.
"""

from __future__ import annotations

import fcntl
import os
import time

from stoker import places
from stoker.client import fast_json
from stoker.client.errors import StokerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOCK_ATTEMPTS = 40
"""A reading client holds the lock for a short time."""


def path() -> str:
    """Return the file."""
    return os.path.join(places.runtime_dir(), "auto.json")


def read() -> dict[str, Any] | None:
    """Return the content written by a living server, None if there is none."""
    try:
        fd = os.open(path(), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(fd).st_uid != os.getuid() or _try_lock(fd, fcntl.LOCK_SH):
            return None  # not locked: its server is gone
        return _read_content(fd)
    finally:
        os.close(fd)


class ServerFile:
    """The server file, locked by the server."""

    def __init__(self) -> None:
        places.secure_dir(places.runtime_dir())
        self.fd = os.open(path(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        for _ in range(LOCK_ATTEMPTS):
            if _try_lock(self.fd, fcntl.LOCK_EX):
                break
            time.sleep(0.025)
        else:
            other = _read_content(self.fd) or {}
            os.close(self.fd)
            raise StokerError(
                f"Your auto server is already running (pid {other.get('pid')}, port "
                f"{other.get('port')}). Stop it first: kill {other.get('pid')}"
            )
        self.previous: dict[str, Any] = _read_content(self.fd) or {}
        """Last content: of this server, or of a killed one."""
        self.written = False

    def write(self, **content: Any) -> None:
        """Replace the content."""
        self.written, self.previous = True, content
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, fast_json.dumps(content).encode() + b"\n", 0)

    def close(self) -> None:
        """Unlock; a server that never wrote leaves the content of its predecessor."""
        if self.written:
            os.ftruncate(self.fd, 0)
        os.close(self.fd)


def _try_lock(fd: int, how: int) -> bool:
    """Try to lock; return False if the lock is held."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_content(fd: int) -> dict[str, Any] | None:
    try:
        content = fast_json.loads(os.pread(fd, 65536, 0))
    except ValueError:
        return None
    return content if isinstance(content, dict) else None
