"""Inotify: kernel events for files that appear or grow, written by processes of this node.

The file system does not matter: changes by these processes are reported on network mounts too.
"""

from __future__ import annotations

import os
import struct
from typing import Any

MODIFY, MOVED_TO, CREATE = 0x2, 0x80, 0x100
OVERFLOW, IGNORED = 0x4000, 0x8000
ONLY_DIRECTORY, DONT_FOLLOW, ONCE = 0x0100_0000, 0x0200_0000, 0x8000_0000

HEAD = struct.Struct("iIII")
BUFFER = 65536
"""Bytes of events that are read at a time."""


class Change:
    """A change of a watched path; `name` is a file in a watched directory."""

    __slots__ = ("lost", "name", "over", "watch")

    def __init__(self, watch: int, mask: int, name: str) -> None:
        self.watch, self.name = watch, name
        self.lost = bool(mask & OVERFLOW)
        """Whether events were lost, because there were too many."""
        self.over = bool(mask & IGNORED)
        """Whether the watched path is gone and its watch has ended."""


class Inotify:
    """A descriptor that is readable when a watched directory or file has changed."""

    def __init__(self) -> None:
        import ctypes  # most commands that import this room never get here

        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._errno, self._word = ctypes.get_errno, ctypes.c_uint32
        self.fd: int = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def watch_directory(self, path: str) -> int:
        """Report every file that appears in a directory."""
        return self._add(path, CREATE | MOVED_TO | ONLY_DIRECTORY | DONT_FOLLOW)

    def watch_file(self, path: str) -> int:
        """Watch a file until it grows once: frequent writes then cost one event."""
        return self._add(path, MODIFY | DONT_FOLLOW | ONCE)

    def _add(self, path: str, mask: int) -> int:
        name = os.fsencode(path)
        return self._checked(self._libc.inotify_add_watch(self.fd, name, self._word(mask)), path)

    def unwatch(self, watch: int) -> None:
        """Remove a watch; safe if the file is gone."""
        self._libc.inotify_rm_watch(self.fd, watch)

    def changes(self) -> list[Change]:
        """Return events since the last call, or a part of them; never block."""
        try:
            data = os.read(self.fd, BUFFER)
        except BlockingIOError:
            return []
        changes, at = [], 0
        while at < len(data):
            watch, mask, _, length = HEAD.unpack_from(data, at)
            at += HEAD.size
            name = data[at : at + length].rstrip(b"\0")
            at += length
            changes.append(Change(watch, mask, os.fsdecode(name)))
        return changes

    def close(self) -> None:
        """Remove all watches; safe to repeat."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _checked(self, result: int, path: str | None = None) -> int:
        if result < 0:
            number = self._errno()
            raise OSError(number, os.strerror(number), path)
        return result
