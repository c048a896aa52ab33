"""ProcessOwners: pid -> (job, attempt), by session, token or ancestor."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.core.model.job import AttemptId
from stoker.executors.linux.process_tree import TOKEN
from stoker.executors.linux.procfs import ProcessStat, read_stat, read_variable
from stoker.probes.gpu_samples import OwnerOf, parse_token

MAX_ANCESTORS = 64


class ProcessOwners:
    """Finds the attempts of pids; caches them from one reading to the next."""

    def __init__(self, install: str) -> None:
        self.install = install
        self._known: dict[int, tuple[int, AttemptId | None]] = {}
        """Start time and attempt of processes; None if no ancestor belongs to an attempt."""

    def lookup(self, sessions: Mapping[int, AttemptId]) -> OwnerOf:
        """Return a function pid -> attempt for one reading."""
        cached, self._known = self._known, {}

        def find(pid: int) -> AttemptId | None:
            stat = read_stat(pid)
            if stat is None:
                return None
            started, key = cached.get(pid) or self._known.get(pid) or (-1, None)
            if started != stat.start_ticks or key is None:
                # Check the process itself every time: it may get its environment by a later exec.
                key = self._own_attempt(pid, stat, sessions)
                if key is None and started != stat.start_ticks:
                    key = self._ancestor_attempt(stat.parent, sessions)
            self._known[pid] = stat.start_ticks, key
            return key

        return find

    def _own_attempt(
        self, pid: int, stat: ProcessStat, sessions: Mapping[int, AttemptId]
    ) -> AttemptId | None:
        return sessions.get(stat.session) or parse_token(read_variable(pid, TOKEN), self.install)

    def _ancestor_attempt(self, pid: int, sessions: Mapping[int, AttemptId]) -> AttemptId | None:
        """Search the ancestors: some processes have no environment, or overwrite it."""
        for _ in range(MAX_ANCESTORS):
            stat = read_stat(pid) if pid > 1 else None
            if stat is None:
                return None
            key = self._own_attempt(pid, stat, sessions)
            if key is not None:
                return key
            pid = stat.parent
        return None
