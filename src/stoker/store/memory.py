"""A store that forgets when it is closed: for tests and simulations."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import nan

from stoker.core.events import Event
from stoker.core.job import Job, Spec
from stoker.core.rest import Rest
from stoker.store import codec
from stoker.store.port import Batch, JobQuery, Snapshot, StoredJob, StoreError, StoreFenced


class Rows:
    """What the tables of a database would hold."""

    def __init__(self) -> None:
        self.term = 0
        self.events: list[tuple[str, bytes]] = []
        self.jobs: dict[int, tuple[bytes, bool]] = {}
        self.specs: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.secrets: dict[str, bytes] = {}
        self.keys: dict[str, tuple[int, int]] = {}
        self.sweeps: dict[int, bytes] = {}
        self.rest = codec.encode(Rest())

    def copy(self) -> Rows:
        """The same rows, to go back to."""
        twin = Rows()
        for name, value in vars(self).items():
            setattr(twin, name, value if isinstance(value, int | bytes) else value.copy())
        return twin


class MemoryStore:
    """Keeps encoded rows, so that what goes through it is what a disk would give back."""

    def __init__(self, rows: Rows | None = None) -> None:
        self.rows = rows or Rows()
        self._mine = 0

    def another(self) -> MemoryStore:
        """A second handle on the same rows, as another process would open it."""
        return type(self)(self.rows)

    def claim(self) -> int:
        """Take over; see the port."""
        self.rows.term += 1
        self._mine = self.rows.term
        return self._mine

    def load(self) -> Snapshot:
        """The state as of the last commit."""
        jobs = [codec.decode_job(data) for data, resident in self.rows.jobs.values() if resident]
        sweeps = [codec.decode_sweep(data) for _, data in sorted(self.rows.sweeps.items())]
        boards = {sweep.id for sweep in sweeps if sweep.resident}
        wanted = {job.spec for job in jobs}
        return Snapshot(
            seq=len(self.rows.events),
            rest=codec.decode_rest(self.rows.rest),
            jobs=jobs,
            specs={hash: codec.decode_spec(self.rows.specs[hash]) for hash in wanted},
            sweeps=sweeps,
            members=self._forgotten(boards) if boards else [],
        )

    def _forgotten(self, boards: set[int]) -> list[Job]:
        rows = sorted(self.rows.jobs.items())
        jobs = (codec.decode_job(data) for _, (data, resident) in rows if not resident)
        return [job for job in jobs if job.array in boards]

    def commit(self, batch: Batch, force: bool) -> int:
        """Write a batch."""
        if self._mine != self.rows.term:
            raise StoreFenced("another daemon has taken over")
        if any(key in self.rows.keys for key, _, _ in batch.keys):
            raise StoreError("this submission is already stored")
        self.rows.specs.update((hash, codec.encode(spec)) for hash, spec in batch.specs.items())
        self.rows.blobs.update(batch.blobs)
        self.rows.secrets.update(batch.secrets)
        self.rows.keys.update((key, (first, count)) for key, first, count in batch.keys)
        self.rows.events += [(type(event).__name__, codec.encode(event)) for event in batch.events]
        self.rows.jobs.update((job.id, (codec.encode(job), True)) for job in batch.jobs)
        for id in batch.dropped:
            self.rows.jobs[id] = (self.rows.jobs[id][0], False)
        self.rows.sweeps.update((each.id, codec.encode(each)) for each in batch.sweeps)
        if batch.rest is not None:
            self.rows.rest = codec.encode(batch.rest)
        return len(self.rows.events)

    def force(self) -> None:
        """Nothing is ever on disk here."""

    def events(self, after: int, most: int) -> Iterator[tuple[int, Event]]:
        """Events behind a sequence number."""
        for seq, (kind, data) in enumerate(self.rows.events[after : after + most], after + 1):
            yield seq, codec.decode_event(kind, codec.VERSION, data)

    def blob(self, hash: str) -> bytes | None:
        """A script."""
        return self.rows.blobs.get(hash)

    def secret(self, hash: str) -> bytes | None:
        """An environment."""
        return self.rows.secrets.get(hash)

    def find_key(self, key: str) -> tuple[int, int] | None:
        """A submission that was already made."""
        return self.rows.keys.get(key)

    def past(self, wanted: JobQuery) -> list[StoredJob]:
        """Jobs that match, oldest first."""
        found: list[StoredJob] = []
        for _, (data, _resident) in sorted(self.rows.jobs.items()):
            job = codec.decode_job(data)
            spec: Spec = codec.decode_spec(self.rows.specs[job.spec])
            if _matches(job, spec, wanted):
                found.append(StoredJob(job, spec))
        if wanted.array is None:
            found.sort(key=lambda each: (each.job.ended_at or 0.0, each.job.id))
        return found[-max(wanted.limit, len(wanted.ids or ())) :]

    def count_past(self, wanted: JobQuery) -> int:
        """How many jobs match, whatever the limit."""
        jobs = (codec.decode_job(data) for data, _ in self.rows.jobs.values())
        specs = self.rows.specs
        return sum(_matches(job, codec.decode_spec(specs[job.spec]), wanted) for job in jobs)

    def members(self, array: int) -> list[int]:
        """The ids of all jobs of an array or a sweep."""
        return [each.job.id for each in self.past(JobQuery(array=array, limit=len(self.rows.jobs)))]

    def warnings(self) -> list[str]:
        """Never any."""
        return []

    def lost(self) -> str | None:
        """It is nowhere else anyway."""
        return None

    def id_floor(self) -> int:
        """What is on record is all there is."""
        return 1

    def lost_events(self) -> int:
        """None ever."""
        return 0

    def backup(self, path: str) -> int:
        """The journal as JSON lines."""
        with open(path, "wb") as out:
            return out.write(b"\n".join(data for _, data in self.rows.events))

    def purge(self, before: float, kept: Collection[str] = ()) -> None:
        """Drop environments that only old jobs used."""
        used = set(kept) | {
            codec.decode_spec(self.rows.specs[job.spec]).environment
            for job in (codec.decode_job(data) for data, _ in self.rows.jobs.values())
            if job.ended_at is None or not job.finished or job.ended_at >= before
        }
        self.rows.secrets = {hash: data for hash, data in self.rows.secrets.items() if hash in used}

    def close(self) -> None:
        """Stays readable, so that a test can look at it."""


def _matches(job: Job, spec: Spec, wanted: JobQuery) -> bool:
    if wanted.ids is not None:
        return job.id in wanted.ids
    if wanted.array is None and not job.finished:
        return False
    ended = nan if job.ended_at is None else job.ended_at  # neither before nor after anything
    return (
        (wanted.array is None or job.array == wanted.array)
        and (wanted.states is None or job.state.value in wanted.states)
        and (wanted.user is None or job.user == wanted.user)
        and (wanted.name is None or job.name == wanted.name)
        and (wanted.queue is None or spec.queue == wanted.queue)
        and (wanted.door is None or spec.door == wanted.door)
        and (wanted.since is None or ended >= wanted.since)
        and (wanted.until is None or ended < wanted.until)
    )
