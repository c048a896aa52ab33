"""A store in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import nan

from stoker.core.events import Event
from stoker.core.model.job import Job
from stoker.core.model.spec import Spec
from stoker.core.state.record import ClusterRecord
from stoker.store import codec
from stoker.store.port import Batch, JobQuery, Snapshot, StoredJob, StoreError, StoreFenced


class Rows:
    """The content of the tables."""

    def __init__(self) -> None:
        self.term = 0
        self.events: list[tuple[str, bytes]] = []
        self.jobs: dict[int, tuple[bytes, bool]] = {}
        self.specs: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.secrets: dict[str, bytes] = {}
        self.keys: dict[str, tuple[int, int]] = {}
        self.sweeps: dict[int, bytes] = {}
        self.rest = codec.encode(ClusterRecord())

    def copy(self) -> Rows:
        """Return a copy to restore later."""
        copy = Rows()
        for name, value in vars(self).items():
            setattr(copy, name, value if isinstance(value, int | bytes) else value.copy())
        return copy


class MemoryStore:
    """Keeps encoded rows, so that values are decoded as they would be from a disk."""

    def __init__(self, rows: Rows | None = None) -> None:
        self.rows = rows or Rows()
        self._term = 0

    def another(self) -> MemoryStore:
        """Return a second handle on the same rows, as another process would open it."""
        return type(self)(self.rows)

    def acquire_term(self) -> int:
        """Take over this state; see the port."""
        self.rows.term += 1
        self._term = self.rows.term
        return self._term

    def load(self) -> Snapshot:
        """Return the state as of the last commit."""
        jobs = [codec.decode_job(data) for data, resident in self.rows.jobs.values() if resident]
        sweeps = [codec.decode_sweep(data) for _, data in sorted(self.rows.sweeps.items())]
        boards = {sweep.id for sweep in sweeps if sweep.resident}
        hashes = {job.spec for job in jobs}
        return Snapshot(
            seq=len(self.rows.events),
            rest=codec.decode_rest(self.rows.rest),
            jobs=jobs,
            specs={hash: codec.decode_spec(self.rows.specs[hash]) for hash in hashes},
            sweeps=sweeps,
            members=self._unloaded(boards) if boards else [],
        )

    def _unloaded(self, boards: set[int]) -> list[Job]:
        rows = sorted(self.rows.jobs.items())
        jobs = (codec.decode_job(data) for _, (data, resident) in rows if not resident)
        return [job for job in jobs if job.array in boards]

    def commit(self, batch: Batch, sync: bool) -> int:
        """Write a batch."""
        if self._term != self.rows.term:
            raise StoreFenced("another daemon has taken over")
        if any(key in self.rows.keys for key, _, _ in batch.keys):
            raise StoreError("this submission is already stored")
        self.rows.specs.update((hash, codec.encode(spec)) for hash, spec in batch.specs.items())
        self.rows.blobs.update(batch.blobs)
        self.rows.secrets.update(batch.secrets)
        self.rows.keys.update((key, (first, count)) for key, first, count in batch.keys)
        self.rows.events += [
            (codec.event_kind(event), codec.encode(event)) for event in batch.events
        ]
        self.rows.jobs.update((job.id, (codec.encode(job), True)) for job in batch.jobs)
        for id in batch.dropped:
            self.rows.jobs[id] = (self.rows.jobs[id][0], False)
        self.rows.sweeps.update((sweep.id, codec.encode(sweep)) for sweep in batch.sweeps)
        if batch.rest is not None:
            self.rows.rest = codec.encode(batch.rest)
        return len(self.rows.events)

    def sync(self) -> None:
        """Do nothing: there is no disk."""

    def events(self, after: int, limit: int) -> Iterator[tuple[int, Event]]:
        """Yield events after a sequence number."""
        for seq, (kind, data) in enumerate(self.rows.events[after : after + limit], after + 1):
            yield seq, codec.decode_event(kind, codec.VERSION, data)

    def events_of(self, kind: str, after: int, until: int) -> list[tuple[int, Event]]:
        """Return the events of a kind in a range of numbers."""
        return [
            (seq, codec.decode_event(each, codec.VERSION, data))
            for seq, (each, data) in enumerate(self.rows.events[:until], 1)
            if seq > after and each == kind
        ]

    def blob(self, hash: str) -> bytes | None:
        """Return a script."""
        return self.rows.blobs.get(hash)

    def secret(self, hash: str) -> bytes | None:
        """Return an environment."""
        return self.rows.secrets.get(hash)

    def find_key(self, key: str) -> tuple[int, int] | None:
        """Return the ids of an earlier submission."""
        return self.rows.keys.get(key)

    def find_jobs(self, query: JobQuery) -> list[StoredJob]:
        """Return the matching jobs, oldest first."""
        rows: list[StoredJob] = []
        for _, (data, _resident) in sorted(self.rows.jobs.items()):
            job = codec.decode_job(data)
            spec: Spec = codec.decode_spec(self.rows.specs[job.spec])
            if _matches(job, spec, query):
                rows.append(StoredJob(job, spec))
        if query.array is None:
            rows.sort(key=lambda row: (row.job.ended_at or 0.0, row.job.id))
        return rows[-max(query.limit, len(query.ids or ())) :]

    def count_jobs(self, query: JobQuery) -> int:
        """Return the number of matching jobs."""
        jobs = (codec.decode_job(data) for data, _ in self.rows.jobs.values())
        specs = self.rows.specs
        return sum(_matches(job, codec.decode_spec(specs[job.spec]), query) for job in jobs)

    def members(self, array: int) -> list[int]:
        """Return the ids of all jobs of an array or a sweep."""
        query = JobQuery(array=array, limit=len(self.rows.jobs))
        return [row.job.id for row in self.find_jobs(query)]

    def warnings(self) -> list[str]:
        """Return no warnings."""
        return []

    def durability_warning(self) -> str | None:
        """Return None: durability is not expected."""
        return None

    def id_floor(self) -> int:
        """Return 1: no ids are lost."""
        return 1

    def lost_events(self) -> int:
        """Return 0: no events are lost."""
        return 0

    def backup(self, path: str) -> int:
        """Write the journal as JSON lines."""
        with open(path, "wb") as out:
            return out.write(b"\n".join(data for _, data in self.rows.events))

    def purge(self, before: float, kept: Collection[str] = ()) -> None:
        """Delete environments that only old jobs used."""
        used = set(kept) | {
            codec.decode_spec(self.rows.specs[job.spec]).environment
            for job in (codec.decode_job(data) for data, _ in self.rows.jobs.values())
            if job.ended_at is None or not job.finished or job.ended_at >= before
        }
        self.rows.secrets = {hash: data for hash, data in self.rows.secrets.items() if hash in used}

    def reserve_space(self) -> None:
        """Do nothing: there is no disk."""

    def release_reserve(self) -> bool:
        """Return False: no space is reserved."""
        return False

    def close(self) -> None:
        """Do nothing: the rows stay readable for tests."""


def _matches(job: Job, spec: Spec, query: JobQuery) -> bool:
    if query.ids is not None:
        return job.id in query.ids
    if query.array is None and not job.finished:
        return False
    ended = nan if job.ended_at is None else job.ended_at  # NaN: neither before nor after any time
    return (
        (query.array is None or job.array == query.array)
        and (query.states is None or job.state.value in query.states)
        and (query.user is None or job.user == query.user)
        and (query.name is None or job.name == query.name)
        and (query.queue is None or spec.queue == query.queue)
        and (query.door is None or spec.client == query.door)
        and (query.since is None or ended >= query.since)
        and (query.until is None or ended < query.until)
    )
