"""What changed since the last commit: the rows that the next one writes."""

from __future__ import annotations

from msgspec import Struct


class Changes(Struct, frozen=True):
    """Ids of changed jobs and sweeps, of unloaded jobs, and whether the cluster record changed."""

    jobs: set[int]
    sweeps: set[int]
    unloaded: list[int]
    record: bool


class ChangeSet:
    """Changes of the state since the last commit; `take` is the only reset."""

    __slots__ = ("_jobs", "_record", "_sweeps", "_unloaded")

    def __init__(self) -> None:
        self._jobs: set[int] = set()
        self._sweeps: set[int] = set()
        self._unloaded: list[int] = []
        self._record = False

    def job(self, id: int) -> None:
        """Note that a job changed."""
        self._jobs.add(id)

    def sweep(self, id: int) -> None:
        """Note that a sweep changed."""
        self._sweeps.add(id)

    def unloaded(self, id: int) -> None:
        """Note that a finished job left memory."""
        self._jobs.discard(id)
        self._unloaded.append(id)

    def record(self) -> None:
        """Note that the cluster record changed."""
        self._record = True

    def has_job(self, id: int) -> bool:
        """Whether a job changed since the last commit."""
        return id in self._jobs

    @property
    def sweeps(self) -> list[int]:
        """Ids of the changed sweeps, in order."""
        return sorted(self._sweeps)

    def take(self) -> Changes:
        """Return what changed since the last call, and start again with nothing."""
        changes = Changes(self._jobs, self._sweeps, self._unloaded, self._record)
        self._jobs, self._sweeps, self._unloaded, self._record = set(), set(), [], False
        return changes
