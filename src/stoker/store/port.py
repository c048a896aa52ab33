"""The port that the engine uses. One contract suite runs against every implementation."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol

from msgspec import Struct

from stoker import wire
from stoker.core.events import Event
from stoker.core.model.job import Job
from stoker.core.model.spec import Spec
from stoker.core.model.sweep import Sweep
from stoker.core.state.record import ClusterRecord


class StoreError(Exception):
    """An operation of the store failed; the message says why and what to do."""


class StoreFull(StoreError):
    """The disk is full."""

    exit_code = wire.EXIT_DISK_FULL


class StoreFenced(StoreError):
    """Another daemon has taken over this state; this one must not write any more."""


class Batch(Struct):
    """All changes of one cycle, written in one transaction."""

    events: list[Event] = []
    jobs: list[Job] = []
    dropped: list[int] = []
    rest: ClusterRecord | None = None
    blobs: dict[str, bytes] = {}
    secrets: dict[str, bytes] = {}
    keys: list[tuple[str, int, int]] = []
    specs: dict[str, Spec] = {}
    sweeps: list[Sweep] = []


class Snapshot(Struct):
    """The state at a sequence number, as stored row by row."""

    seq: int
    rest: ClusterRecord
    jobs: list[Job]
    specs: dict[str, Spec]
    sweeps: list[Sweep] = []
    members: list[Job] = []
    """Unloaded jobs of sweeps that still have their trial boards in memory."""


class StoredJob(Struct):
    """A job read back from the store, with its spec."""

    job: Job
    spec: Spec


class JobQuery(Struct, kw_only=True):
    """Selects stored jobs."""

    ids: list[int] | None = None
    states: list[str] | None = None
    user: str | None = None
    name: str | None = None
    queue: str | None = None
    door: str | None = None
    array: int | None = None
    """All members of an array or a sweep, finished or not."""
    since: float | None = None
    until: float | None = None
    limit: int = 100


class Store(Protocol):
    """A journal of events plus row-wise projections, changed only in one transaction."""

    def acquire_term(self) -> int:
        """Take over this state; return the new term. Older terms can no longer commit."""

    def load(self) -> Snapshot:
        """Return the state as of the last commit."""

    def commit(self, batch: Batch, sync: bool) -> int:
        """Write a batch; return the last sequence number. With `sync`, it is on disk on return."""

    def sync(self) -> None:
        """Put everything committed so far on disk. Safe to call from another thread."""

    def events(self, after: int, limit: int) -> Iterator[tuple[int, Event]]:
        """Yield events after a sequence number, in order."""

    def events_of(self, kind: str, after: int, until: int) -> list[tuple[int, Event]]:
        """Return the events of a kind with numbers above `after`, up to `until`, in order."""

    def blob(self, hash: str) -> bytes | None:
        """Return a script by its hash."""

    def secret(self, hash: str) -> bytes | None:
        """Return an environment by its hash."""

    def find_key(self, key: str) -> tuple[int, int] | None:
        """Return the first id and the count that a submission key was given, if it was used."""

    def find_jobs(self, query: JobQuery) -> list[StoredJob]:
        """Return the matching jobs, oldest first."""

    def count_jobs(self, query: JobQuery) -> int:
        """Return the number of matching jobs, regardless of the limit."""

    def members(self, array: int) -> list[int]:
        """Return the ids of all jobs of an array or a sweep, in order."""

    def warnings(self) -> list[str]:
        """Return the problems that were found and repaired when the store was opened."""

    def durability_warning(self) -> str | None:
        """Return why commits would be lost with this process; None if they are kept."""

    def id_floor(self) -> int:
        """Return the lowest id that may be new: lower ones were given out, on record or not."""

    def lost_events(self) -> int:
        """Return the number of synced events that are missing: jobs may have run further."""

    def backup(self, path: str) -> int:
        """Write a consistent copy; return its size in bytes."""

    def purge(self, before: float, kept: Collection[str] = ()) -> None:
        """Delete environments used only by jobs that ended before this time, except `kept`."""

    def reserve_space(self) -> None:
        """Reserve disk space for events that arrive when the disk is full, if not reserved."""

    def release_reserve(self) -> bool:
        """Release the reserved space; return False if there is none."""

    def close(self) -> None:
        """Sync and close the store."""
