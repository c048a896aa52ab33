"""What changed since the last commit: the rows that the next one writes."""

from __future__ import annotations


class ChangeSet:
    """Ids of changed jobs and sweeps, of unloaded jobs, and whether the cluster record changed."""

    def __init__(self) -> None:
        self.jobs: set[int] = set()
        self.sweeps: set[int] = set()
        self.unloaded: list[int] = []
        self.has_record = False

    def job(self, id: int) -> None:
        """Note that a job changed."""
        self.jobs.add(id)

    def sweep(self, id: int) -> None:
        """Note that a sweep changed."""
        self.sweeps.add(id)

    def unload(self, id: int) -> None:
        """Note that a finished job left memory."""
        self.jobs.discard(id)
        self.unloaded.append(id)

    def add(self, later: ChangeSet) -> None:
        """Add what a later commit changed."""
        self.jobs |= later.jobs
        self.sweeps |= later.sweeps
        self.unloaded += later.unloaded
        self.has_record = self.has_record or later.has_record

    def record(self) -> None:
        """Note that the cluster record changed."""
        self.has_record = True
