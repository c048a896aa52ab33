"""Whose a process on this machine is: the attempt behind a pid."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.executors.linux.process_tree import TOKEN
from stoker.executors.linux.procfs import ProcessStat, read_stat, read_variable
from stoker.probes.gpu_samples import Key, Whose, key_of

DEEPEST = 64
"""So many ancestors of a process are looked at."""


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
            stat = read_stat(pid)
            if stat is None:
                return None
            born, key = before.get(pid) or self._known.get(pid) or (-1, None)
            if born != stat.start_ticks or key is None:
                # Its own marks are looked at every time: it may have been about to get them.
                key = self._marked(pid, stat, sessions)
                if key is None and born != stat.start_ticks:
                    key = self._inherited(stat.parent, sessions)
            self._known[pid] = stat.start_ticks, key
            return key

        return find

    def _marked(self, pid: int, stat: ProcessStat, sessions: Mapping[int, Key]) -> Key | None:
        return sessions.get(stat.session) or key_of(read_variable(pid, TOKEN), self.install)

    def _inherited(self, pid: int, sessions: Mapping[int, Key]) -> Key | None:
        """Some processes start with an empty environment, or write over theirs."""
        for _ in range(DEEPEST):
            stat = read_stat(pid) if pid > 1 else None
            if stat is None:
                return None
            key = self._marked(pid, stat, sessions)
            if key is not None:
                return key
            pid = stat.parent
        return None
