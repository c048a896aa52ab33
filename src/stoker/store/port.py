"""What the engine needs of a store. One contract suite runs against every implementation."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol

from msgspec import Struct

from stoker import wire
from stoker.core.events import Event
from stoker.core.job import Job, Spec
from stoker.core.rest import Rest
from stoker.core.sweep import Sweep


class StoreError(Exception):
    """The store could not do what was asked; the message says what and what to do."""


class StoreFull(StoreError):
    """No room on the disk."""

    exit_code = wire.EXIT_DISK_FULL


class StoreFenced(StoreError):
    """Another driver has taken this state over; nothing of ours may be written any more."""


class Batch(Struct):
    """All that one cycle changed, written in one transaction."""

    events: list[Event]
    jobs: list[Job]
    dropped: list[int]
    rest: Rest | None
    blobs: dict[str, bytes]
    secrets: dict[str, bytes]
    keys: list[tuple[str, int, int]]
    specs: dict[str, Spec]
    sweeps: list[Sweep] = []


class Snapshot(Struct):
    """The state at a sequence number, as kept row by row."""

    seq: int
    rest: Rest
    jobs: list[Job]
    specs: dict[str, Spec]
    sweeps: list[Sweep] = []
    members: list[Job] = []
    """Jobs that have left memory, of sweeps whose boards are still there."""


class StoredJob(Struct):
    """A job read back from the store, with what was submitted."""

    job: Job
    spec: Spec


class JobQuery(Struct, kw_only=True):
    """Which jobs of the past are wanted."""

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

    def tests(self, owner: str) -> list[tuple[str, str, str | float]]:
        """Columns, comparisons and values, for a WHERE; `owner` is the column of the user."""
        found = (
            (owner, "=", self.user),
            ("jobs.name", "=", self.name),
            ("specs.queue", "=", self.queue),
            ("specs.door", "=", self.door),
            ("ended_at", ">=", self.since),
            ("ended_at", "<", self.until),
        )
        return [(column, test, value) for column, test, value in found if value is not None]


class Store(Protocol):
    """A journal of events plus row-wise projections, changed only together."""

    def claim(self) -> int:
        """Take this state over; returns the new term. Older terms can no longer commit."""

    def load(self) -> Snapshot:
        """The state as of the last commit."""

    def commit(self, batch: Batch, force: bool) -> int:
        """Write a batch; returns the last sequence. With `force`, it is on disk on return."""

    def force(self) -> None:
        """Put everything committed so far on disk. Safe to call from another thread."""

    def events(self, after: int, most: int) -> Iterator[tuple[int, Event]]:
        """Events behind a sequence number, in order."""

    def blob(self, hash: str) -> bytes | None:
        """A script by its hash."""

    def secret(self, hash: str) -> bytes | None:
        """An environment by its hash."""

    def find_key(self, key: str) -> tuple[int, int] | None:
        """The ids a submission key was given, if it was ever used."""

    def past(self, wanted: JobQuery) -> list[StoredJob]:
        """Jobs by id or by what became of them, oldest first."""

    def count_past(self, wanted: JobQuery) -> int:
        """How many jobs match, whatever the limit."""

    def members(self, array: int) -> list[int]:
        """The ids of all jobs of an array or a sweep, in order."""

    def warnings(self) -> list[str]:
        """What was found wrong and mended when the store was opened."""

    def lost(self) -> str | None:
        """Why what is committed now would be gone with this process; None while it would stay."""

    def id_floor(self) -> int:
        """No id below this one may be given out: it was, whether or not that is on record."""

    def lost_events(self) -> int:
        """How many synced events are missing: jobs may have run further than is on record."""

    def backup(self, path: str) -> int:
        """Write a consistent copy; returns its size in bytes."""

    def purge(self, before: float, kept: Collection[str] = ()) -> None:
        """Drop secrets that only jobs used that ended before this time, but for those `kept`."""

    def close(self) -> None:
        """Let go of it."""
