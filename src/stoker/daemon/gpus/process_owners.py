"""Whose a process on this machine is: the attempt behind a pid."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from stoker.executors.linux.process_tree import TOKEN
from stoker.probes.gpu_samples import Key, Whose, key_of

DEEPEST = 64
"""So many ancestors of a process are looked at."""


class _Stat(Struct, frozen=True):
    parent: int
    session: int
    born: int
    """Clock ticks since boot: with the pid, this names a process."""


class ProcessOwners:
    """Finds the attempts behind pids, and remembers them while they are asked for."""

    def __init__(self, install: str) -> None:
        self.install = install
        self._known: dict[int, tuple[int, Key | None]] = {}
        """Birth and attempt of processes; None: no ancestor of it is of ours."""

    def whose(self, sessions: Mapping[int, Key]) -> Whose:
        """For one look: by the session of an attempt, by its token, or by an ancestor's."""
        before, self._known = self._known, {}

        def find(pid: int) -> Key | None:
            stat = _stat(pid)
            if stat is None:
                return None
            born, key = before.get(pid) or self._known.get(pid) or (-1, None)
            if born != stat.born or key is None:
                # Its own marks are looked at every time: it may have been about to get them.
                key = self._marked(pid, stat, sessions)
                if key is None and born != stat.born:
                    key = self._inherited(stat.parent, sessions)
            self._known[pid] = stat.born, key
            return key

        return find

    def _marked(self, pid: int, stat: _Stat, sessions: Mapping[int, Key]) -> Key | None:
        return sessions.get(stat.session) or key_of(_token(pid), self.install)

    def _inherited(self, pid: int, sessions: Mapping[int, Key]) -> Key | None:
        """Some processes start with an empty environment, or write over theirs."""
        for _ in range(DEEPEST):
            stat = _stat(pid) if pid > 1 else None
            if stat is None:
                return None
            key = self._marked(pid, stat, sessions)
            if key is not None:
                return key
            pid = stat.parent
        return None


def _stat(pid: int) -> _Stat | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return _Stat(int(fields[1]), int(fields[3]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None  # it has ended, or is hidden from us


def _token(pid: int) -> str | None:
    mark = f"{TOKEN}=".encode()
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            for entry in file.read().split(b"\0"):
                if entry.startswith(mark):
                    return entry[len(mark) :].decode(errors="replace")
    except OSError:
        pass  # somebody else's
    return None
