"""Which users have used stoker: one file per uid, which outlives the gate."""

from __future__ import annotations

import os
import re

from stoker.gate.config import ConfigError


class Records:
    """Name and authorization of every uid that has connected.

    The name stays after a release, so that a uid that was given to another account is noticed.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._names: dict[int, str] = {}
        self._authorized: set[int] = set()
        for entry in os.listdir(directory):
            if not entry.isdecimal():
                continue  # a file that was being written
            with open(os.path.join(directory, entry)) as file:
                match = re.fullmatch(r"(\S+) (authorized|released)\n", file.read())
            if match is None:
                raise ConfigError(f"{directory}/{entry} is damaged; remove it")
            self._names[int(entry)] = match[1]
            if match[2] == "authorized":
                self._authorized.add(int(entry))

    def authorized(self) -> list[int]:
        """Return all authorized uids."""
        return sorted(self._authorized)

    def name_of(self, uid: int) -> str | None:
        """Return the account that `uid` had when it was authorized; None if it is not."""
        return self._names[uid] if uid in self._authorized else None

    def authorize(self, uid: int, name: str) -> None:
        """Note, on disk, that this user has connected; an earlier name of the uid stays."""
        name = self._names.setdefault(uid, name)
        self._write(uid, f"{name} authorized\n")
        self._authorized.add(uid)

    def release(self, uid: int) -> None:
        """Forget the authorization of a uid."""
        if uid in self._authorized:
            self._write(uid, f"{self._names[uid]} released\n")
            self._authorized.discard(uid)

    def _write(self, uid: int, text: str) -> None:
        path = os.path.join(self.directory, str(uid))
        fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(fd, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(fd)
        os.rename(f"{path}.new", path)
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
