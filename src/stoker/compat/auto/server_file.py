"""Where the server of this user is, for clients that are not told: a file in the runtime directory.

The server holds a lock on it for as long as it lives, so that a file that was left behind by one
that was killed is known for what it is.
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

TRIES = 40
"""A client that is reading holds the lock for a moment."""


def path() -> str:
    """Return the file."""
    return os.path.join(places.runtime_dir(), "auto.json")


def read() -> dict[str, Any] | None:
    """Return what a living server wrote; None when there is none."""
    try:
        fd = os.open(path(), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(fd).st_uid != os.getuid() or _locked(fd, fcntl.LOCK_SH):
            return None  # nobody holds it: its server is gone
        return _content(fd)
    finally:
        os.close(fd)


class ServerFile:
    """The server's hold on the file."""

    def __init__(self) -> None:
        places.secure_dir(places.runtime_dir())
        self.fd = os.open(path(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        for _ in range(TRIES):
            if _locked(self.fd, fcntl.LOCK_EX):
                break
            time.sleep(0.025)
        else:
            other = _content(self.fd) or {}
            os.close(self.fd)
            raise StokerError(
                f"Your auto server is already running (pid {other.get('pid')}, port "
                f"{other.get('port')}). Stop it first: kill {other.get('pid')}"
            )
        self.before: dict[str, Any] = _content(self.fd) or {}
        """What was written last: by us, or by a server that was killed before it could tidy up."""
        self.written = False

    def write(self, **content: Any) -> None:
        """Say where the server is."""
        self.written, self.before = True, content
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, fast_json.dumps(content).encode() + b"\n", 0)

    def close(self) -> None:
        """The server is gone; one that never served leaves what its predecessor left to tidy."""
        if self.written:
            os.ftruncate(self.fd, 0)
        os.close(self.fd)


def _locked(fd: int, how: int) -> bool:
    """Try to get the lock; whoever gets it knows that no server lives."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _content(fd: int) -> dict[str, Any] | None:
    try:
        found = fast_json.loads(os.pread(fd, 65536, 0))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
