"""CrashPoint and stores: kill the daemon at a chosen instant."""

from __future__ import annotations

from memory_store import MemoryStore, Rows
from stoker.store.port import Batch, Store


class Crash(BaseException):
    """The daemon was killed here. Not an Exception, so that no handler contains it."""


class CrashPoint:
    """Counts the instants at which the daemon could be killed, and kills it at one of them."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.passed = 0
        self.places: list[str] = []

    def pass_by(self, place: str) -> None:
        """An instant between two steps."""
        self.passed += 1
        self.places.append(place)
        if self.passed == self.at:
            raise Crash(place)


class FusedStore:
    """A store with a crash point before and after each commit."""

    def __init__(self, store: Store, fuse: CrashPoint) -> None:
        self.store, self.fuse = store, fuse

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)

    def commit(self, batch: Batch, sync: bool) -> int:
        """Commit, with an instant on either side."""
        self.fuse.pass_by("before commit")
        seq = self.store.commit(batch, sync)
        self.fuse.pass_by("after commit")
        return seq


class VolatileStore(MemoryStore):
    """A store that loses what was not synced when the power fails."""

    def __init__(self, rows: Rows | None = None) -> None:
        super().__init__(rows)
        self.on_disk = self.rows.copy()

    def commit(self, batch: Batch, sync: bool) -> int:
        """Write a batch; on disk only when synced."""
        seq = super().commit(batch, sync)
        if sync:
            self.sync()
        return seq

    def acquire_term(self) -> int:
        """Acquire a term, and sync it."""
        term = super().acquire_term()
        self.sync()
        return term

    def sync(self) -> None:
        """Keep what is committed through a loss of power."""
        self.on_disk = self.rows.copy()

    def lose_power(self) -> None:
        """Drop what was not synced."""
        self.rows = self.on_disk.copy()
