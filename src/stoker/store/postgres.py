"""The journal in PostgreSQL: one schema, one writer; the writer's session holds the lease.

After a connection breaks during a commit, its outcome is looked up: only the session with the
lease writes, so once a new session has the lease, the old transaction is either committed or
never will be, and the numbers of its events tell which. See docs/decisions/0005.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

import psycopg
from msgspec import Struct

from stoker.core.events import (
    ForeignUseChanged,
    JobsUnloaded,
    ProcessExited,
    ProcessStarted,
    TrialMeasured,
    TrialsUnloaded,
)
from stoker.store import codec, migrations
from stoker.store import postgres_server as server
from stoker.store.port import Batch, Snapshot, StoreError, StoreFenced, StoreFull
from stoker.store.postgres_server import Connection, ConnectionLost, ServerUnreachable
from stoker.store.postgres_sql import statements, storable
from stoker.store.select import StoreConfig
from stoker.store.sql_reader import FINISHED_STATES, SqlReader
from stoker.store.watermark import Watermark

logger = logging.getLogger(__name__)

REDISCOVERED_EVENTS = frozenset(
    {
        ProcessStarted,
        ProcessExited,
        TrialMeasured,
        ForeignUseChanged,
        JobsUnloaded,
        TrialsUnloaded,
    }
)
"""Events that the next daemon would find again: starts and ends in claim files, measurements of
trials in reports.

All others wait for the server's disk. If server and daemon crash together, a start that only the
server's memory knew of would be made a second time.
"""

_FLUSH = """
    UPDATE meta SET number = (SELECT coalesce(max(seq), 0) FROM events)
    WHERE key = 'forced' AND EXISTS (SELECT FROM meta WHERE key = 'term' AND number = %s)
    RETURNING number
"""
"""A write that waits for the disk, and thereby for everything that was committed before."""
_MEMBERS = """
    SELECT jobs.data FROM sweeps JOIN jobs ON jobs.member_of = sweeps.id
    WHERE sweeps.resident AND NOT jobs.resident ORDER BY jobs.id
"""
_LAST = "SELECT coalesce(max(seq), 0) FROM events"


class _SentBatch(Struct):
    """A batch as statements, kept until it is on disk."""

    first: int
    """The number of its first event, or the next one without events."""
    last: int
    statements: list[tuple[str, tuple[Any, ...]]]
    sent: bool = False


class PostgresStore(SqlReader):
    """Commits in one round trip; `sync` waits for commits that are not on the server's disk."""

    USER_COLUMN = "owner"
    ID_CONDITION = "jobs.id IN (SELECT value::bigint FROM json_array_elements_text(?::json))"

    def __init__(
        self,
        config: StoreConfig,
        *,
        watermark: str | None = None,
        reconnect_timeout: float = 30.0,
    ) -> None:
        """`watermark` is the path of the watermark file."""
        super().__init__()
        self.config, self.reconnect_timeout = config, reconnect_timeout
        self.path = config.shown
        self._name = server.SessionName.create()
        self._term = 0
        self._seq = 0
        self._lock = threading.RLock()
        self._flushing = threading.Lock()
        self._flusher: Connection | None = None
        self._fatal_error: StoreError | None = None
        """Why nothing can be written any more; raised by every further operation."""
        self._unsynced: list[_SentBatch] = []
        self._durable = 0
        """The last event that is known to be on the server's disk."""
        self._next_id = 1
        self._watermark: Watermark | None = None
        self._db = server.connect(config, self._name)
        try:
            self._create_or_migrate()
            self._durable = self._seq = self._last_seq()
            if watermark is not None:
                self._check_tail(watermark)
        except BaseException as error:
            self._db.close()
            if isinstance(error, psycopg.Error):
                raise server.translate_error(error, config) from None
            raise

    # -- opening ------------------------------------------------------------------------

    def _create_or_migrate(self) -> None:
        """Reject tables of other programs, take the lease, create or migrate the tables."""
        server.read_layout(self._db, self.config)
        server.acquire_lease(self._db, self.config, self._name, server.LEASE_TIMEOUT_SECONDS)
        layout = server.read_layout(self._db, self.config)
        steps = []
        if layout is None:
            if not self._read("SELECT to_regnamespace(%s) IS NOT NULL", (self.config.schema,))[0][
                0
            ]:
                steps.append(f"CREATE SCHEMA {self.config.schema}")
            steps.append(migrations.script("postgres.sql"))
            identity = os.urandom(6).hex()
            steps.append(f"INSERT INTO meta (key, data) VALUES ('identity', '{identity}')")
            steps.append(f"INSERT INTO meta (key, number) VALUES ('layout', {server.LAYOUT})")
        elif layout < server.LAYOUT:
            steps += [migrations.POSTGRES[old] for old in range(layout, server.LAYOUT)]
            steps.append(f"UPDATE meta SET number = {server.LAYOUT} WHERE key = 'layout'")
        if steps:
            self._db.execute(";\n".join(["BEGIN", *steps, "COMMIT"]).encode())
        row = self._db.execute("SELECT data FROM meta WHERE key = 'identity'").fetchone()
        self.identity = bytes(row[0]).decode() if row else ""

    def _check_tail(self, path: str) -> None:
        """Warn if events that were synced are missing."""
        self._watermark = Watermark(path, self.identity)
        synced = self._watermark.seq
        if self._seq < synced:
            self._lost_events = synced - self._seq
            self._warnings.append(
                f"the journal ends at event {self._seq}, but event {synced} had been synced: "
                f"{self.path} has lost its last events"
            )
        self._seq = max(self._seq, synced)  # sequence numbers are never reused

    def durability_warning(self) -> str | None:
        """Return None: commits fail if the server does not answer."""
        return None

    def id_floor(self) -> int:
        """Return the lowest id that may be new; see the port."""
        return self._watermark.next_id if self._watermark is not None else 1

    def _note_synced(self, seq: int) -> None:
        self._durable = max(self._durable, seq)
        if self._watermark is not None:
            self._watermark.note(self._durable, self._next_id)

    # -- reconnecting ------------------------------------------------------------------

    def _reconnect(self) -> None:
        """Connect again; write again what the server has lost.

        A server that crashed may have lost the last commits that were not on its disk; these
        are still in memory and are written again.
        """
        logger.warning("lost the connection to %s", self.path)
        deadline = time.monotonic() + self.reconnect_timeout
        while True:
            self._db.close()
            try:
                self._db = server.connect(self.config, self._name)
                self._catch_up()
                logger.info("reconnected to %s", self.path)
                return
            except (ConnectionLost, ServerUnreachable, StoreFull) as error:
                if time.monotonic() > deadline:
                    raise self._fail_permanently(_unreachable(error, self.path)) from None
            except StoreError as error:
                raise self._fail_permanently(error) from None
            time.sleep(0.1)

    def _catch_up(self) -> None:
        db = self._db
        try:
            server.acquire_lease(db, self.config, self._name, server.LEASE_TIMEOUT_SECONDS)
            if not self._term:
                return
            db.execute("SELECT check_term(%s)", (self._term,))
            row = db.execute(_LAST).fetchone()
        except psycopg.Error as error:
            raise self._failed(error, db) from error
        last = int(row[0]) if row else 0
        if last < self._durable:
            raise StoreError(
                f"{self.path} has lost events: the last one is {last}, but {self._durable} had "
                f"been synced. This daemon stops; the next daemon continues from event {last}."
            )
        for sent_batch in self._unsynced:
            if sent_batch.first > last:
                self._send(sent_batch, sync=True)
                sent_batch.sent = True
        self._note_synced(self._flush(db))
        self._unsynced = [
            sent_batch for sent_batch in self._unsynced if sent_batch.last > self._durable
        ]

    def _fail_permanently(self, error: StoreError) -> StoreError:
        """Reject all further operations: another daemon took over, or the server is gone."""
        fenced = error if isinstance(error, StoreFenced) else StoreFenced(str(error))
        self._fatal_error = fenced
        return fenced

    def _failed(self, error: psycopg.Error, db: Connection) -> Exception:
        """Return ConnectionLost, or the error of a transaction that was not committed."""
        if server.is_connection_lost(error, db):
            return ConnectionLost(str(error))
        server.roll_back(db)
        return server.translate_error(error, self.config)

    def _read(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Run a query; repeat it on a new connection if the old one broke."""
        with self._lock:
            for _ in range(5):
                if self._fatal_error is not None:
                    raise self._fatal_error
                try:
                    return self._db.execute(sql, values, binary=True).fetchall()
                except psycopg.Error as error:
                    failed = self._failed(error, self._db)
                    if not isinstance(failed, ConnectionLost):
                        raise failed from error
                self._reconnect()
            raise ServerUnreachable(f"{self.path} closes every connection.")

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        return self._read(sql.replace("?", "%s"), tuple(map(storable, values)))

    # -- the port -----------------------------------------------------------------------

    def acquire_term(self) -> int:
        """Take over this state: daemons with an older term can no longer write."""
        with self._lock:
            self._term = 0  # if the connection breaks, it is incremented once more
            sql = "UPDATE meta SET number = number + 1 WHERE key = 'term' RETURNING number"
            self._term = int(self._read(sql)[0][0])
            return self._term

    def load(self) -> Snapshot:
        """Return the state as of the last commit."""
        with self._lock:
            rest = self._read("SELECT data FROM meta WHERE key = 'rest'")
            jobs = self._read("SELECT data FROM jobs WHERE resident ORDER BY id")
            specs = self._read(
                "SELECT hash, data FROM specs WHERE hash IN (SELECT spec FROM jobs WHERE resident)"
            )
            sweeps = self._read("SELECT data FROM sweeps ORDER BY id")
            members = self._read(_MEMBERS) if sweeps else []
            self._seq = max(self._seq, self._last_seq())
        try:
            return Snapshot(
                seq=self._seq,
                rest=codec.decode_rest(rest[0][0] if rest else b"{}"),
                jobs=[codec.decode_job(data) for (data,) in jobs],
                specs={hash: codec.decode_spec(data) for hash, data in specs},
                sweeps=[codec.decode_sweep(data) for (data,) in sweeps],
                members=[codec.decode_job(data) for (data,) in members],
            )
        except codec.DAMAGE as error:
            raise StoreError(
                f"{self.path} holds rows that cannot be read ({error}). Restore a backup."
            ) from error

    def _last_seq(self) -> int:
        return int(self._read(_LAST)[0][0])

    def commit(self, batch: Batch, sync: bool) -> int:
        """Write events and projections in one transaction, unless the term is outdated."""
        with self._lock:
            if self._fatal_error is not None:
                raise self._fatal_error
            sync = sync or not REDISCOVERED_EVENTS.issuperset(map(type, batch.events))
            sent_batch = _SentBatch(self._seq + 1, self._seq + len(batch.events), [])
            sent_batch.statements = statements(batch, sent_batch.first)
            self._unsynced.append(sent_batch)
            try:
                self._send(sent_batch, sync)
                sent_batch.sent = True
            except ConnectionLost:
                self._reconnect()  # commits this batch too, or raises an error
            except BaseException:
                self._unsynced.remove(sent_batch)
                raise
            self._seq = sent_batch.last
            if batch.rest is not None:
                self._next_id = batch.rest.next_id
            if sync:
                self._unsynced.clear()
                self._note_synced(self._seq)
            return self._seq

    def _send(self, sent_batch: _SentBatch, sync: bool) -> None:
        """Commit in one round trip; the outcome is known unless ConnectionLost is raised."""
        db = self._db
        try:
            with db.pipeline():
                db.execute("BEGIN")
                if not sync:
                    db.execute("SET LOCAL synchronous_commit = off")
                db.execute("SELECT check_term(%s)", (self._term,))
                for sql, values in sent_batch.statements:
                    db.execute(sql, values)
                end = db.execute("COMMIT")
        except psycopg.Error as error:
            raise self._failed(error, db) from error
        if end.statusmessage != "COMMIT":
            raise StoreError(f"{self.path} did not commit ({end.statusmessage}).")

    def sync(self) -> None:
        """Wait until all commits are on the server's disk, through a separate connection."""
        with self._flushing:
            for _ in range(3):
                with self._lock:
                    if self._fatal_error is not None:
                        raise self._fatal_error
                    waiting = [sent_batch for sent_batch in self._unsynced if sent_batch.sent]
                if not waiting:
                    return
                synced = self._flush_on_own_connection()
                if all(sent_batch.last <= synced for sent_batch in waiting):
                    with self._lock:
                        self._note_synced(synced)
                        waited = {id(sent_batch) for sent_batch in waiting}
                        self._unsynced = [
                            sent_batch
                            for sent_batch in self._unsynced
                            if id(sent_batch) not in waited
                        ]
                    return
                self._last_seq()  # the server has lost commits: reconnecting writes them again
            raise StoreError(f"{self.path} lost a committed transaction.")

    def _flush_on_own_connection(self) -> int:
        deadline = time.monotonic() + self.reconnect_timeout
        while True:
            try:
                if self._flusher is None or self._flusher.closed:
                    self._flusher = server.connect(self.config, server.SessionName.create())
                return self._flush(self._flusher)
            except (ConnectionLost, ServerUnreachable) as error:
                if self._flusher is not None:
                    self._flusher.close()
                if time.monotonic() > deadline:
                    raise ServerUnreachable(str(error)) from None
            time.sleep(0.1)

    def _flush(self, db: Connection) -> int:
        try:
            row = db.execute(_FLUSH, (self._term,)).fetchone()
        except psycopg.Error as error:
            raise self._failed(error, db) from error
        if row is None:
            raise StoreFenced("Another daemon has taken over this state; this one stops.")
        return int(row[0])

    def backup(self, path: str) -> int:
        """Write a consistent copy as SQL, by pg_dump."""
        from stoker.store.postgres_backup import dump

        return dump(self.config, path)

    def purge(self, before: float, kept: Collection[str] = ()) -> None:
        """Delete environments that only jobs used that ended before this time."""
        self._read(
            "WITH gone AS (DELETE FROM secrets WHERE hash <> ALL (%s) AND hash NOT IN ("
            "SELECT environment FROM specs WHERE hash IN ("
            "SELECT spec FROM jobs WHERE ended_at IS NULL OR ended_at >= %s"
            " OR state <> ALL (%s))) RETURNING 1) SELECT count(*) FROM gone",
            (list(kept), before, FINISHED_STATES),
        )

    def reserve_space(self) -> None:
        """Do nothing: the disk is the server's."""

    def release_reserve(self) -> bool:
        """Return False: no space is reserved."""
        return False

    def close(self) -> None:
        """Sync and release the lease."""
        if self._fatal_error is None and self._unsynced:
            self.reconnect_timeout = min(
                self.reconnect_timeout, 2.0
            )  # claim files have what is not written
            with contextlib.suppress(StoreError):
                self.sync()
        self._fatal_error = self._fatal_error or StoreError("This store is closed.")
        for db in (self._flusher, self._db):
            if db is not None:
                db.close()
        if self._watermark is not None:
            self._watermark.close()


def _unreachable(error: Exception, path: str) -> StoreError:
    text = str(error) if isinstance(error, ServerUnreachable) else f"{path} cannot be reached."
    return StoreError(
        f"{text} The last changes may not have been stored: check the queue before repeating "
        "them. Running jobs continue; the next daemon recovers them."
    )
