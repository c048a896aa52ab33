"""The journal in PostgreSQL: one schema, one writer, whose session holds the lease.

A commit whose outcome the network swallowed is looked up: the session that holds the lease is
the one that writes, so once a new session has the lease, the old transaction is either there
or never will be, and the numbers of its events tell which. See docs/decisions/0005.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any

import psycopg
from msgspec import Struct

from stoker.core.events import (
    Event,
    ForeignUseChanged,
    JobsForgotten,
    ProcessExited,
    ProcessStarted,
    TrialMeasured,
    TrialsForgotten,
)
from stoker.store import codec
from stoker.store import migrations as layouts
from stoker.store import postgres_server as server
from stoker.store.port import (
    Batch,
    JobQuery,
    Snapshot,
    StoredJob,
    StoreError,
    StoreFenced,
    StoreFull,
)
from stoker.store.postgres_server import Connection, Lost, Unreachable
from stoker.store.postgres_sql import ENDED, conditions, statements, storable
from stoker.store.select import StoreConfig
from stoker.store.watermark import Watermark

logger = logging.getLogger(__name__)

FOUND_AGAIN = frozenset(
    {
        ProcessStarted,
        ProcessExited,
        TrialMeasured,
        ForeignUseChanged,
        JobsForgotten,
        TrialsForgotten,
    }
)
"""Facts that the next daemon would find out by itself: claims tell starts and ends again, and
reports what trials have measured.

Everything else waits for the server's disk. If server and daemon crash together, a start that
only the server's memory knew of would be made a second time.
"""

_FLUSH = """
    UPDATE meta SET number = (SELECT coalesce(max(seq), 0) FROM events)
    WHERE key = 'forced' AND EXISTS (SELECT FROM meta WHERE key = 'term' AND number = %s)
    RETURNING number
"""
"""A write that waits for the disk: with it, everything is there that was committed before."""
_MEMBERS = """
    SELECT jobs.data FROM sweeps JOIN jobs ON jobs.member_of = sweeps.id
    WHERE sweeps.resident AND NOT jobs.resident ORDER BY jobs.id
"""
_LAST = "SELECT coalesce(max(seq), 0) FROM events"


class _Written(Struct):
    """A batch as statements, kept until it is known to be on disk."""

    first: int
    """The number of its first event, or the one it would have."""
    last: int
    statements: list[tuple[str, tuple[Any, ...]]]
    sent: bool = False


class PostgresStore:
    """Commits go out in one round trip; `force` brings those to disk that did not wait for it."""

    def __init__(
        self, choice: StoreConfig, *, aside: str | None = None, patience: float = 30.0
    ) -> None:
        """`aside` is a file for the watermark; `patience` for a server that is away."""
        self.choice, self.patience = choice, patience
        self.path = choice.shown
        self._name = server.Name.ours()
        self._warnings: list[str] = []
        self._term = 0
        self._seq = 0
        self._lock = threading.RLock()
        self._flushing = threading.Lock()
        self._flusher: Connection | None = None
        self._dead: StoreError | None = None
        """Why nothing goes any more; said again to whoever tries."""
        self._unforced: list[_Written] = []
        self._durable = 0
        """The last event that the server is known to have on its disk."""
        self._next_id = 1
        self._lost_events = 0
        self._watermark: Watermark | None = None
        self._db = server.connect(choice, self._name)
        try:
            self._lay_out()
            self._durable = self._seq = self._last_seq()
            if aside is not None:
                self._check_tail(aside)
        except BaseException as error:
            self._db.close()
            if isinstance(error, psycopg.Error):
                raise server.translated(error, choice) from None
            raise

    # -- opening ------------------------------------------------------------------------

    def _lay_out(self) -> None:
        """Refuse what is not ours, take the lease, then make or migrate the tables."""
        server.layout_of(self._db, self.choice)
        server.take_lease(self._db, self.choice, self._name, server.HANDOVER)
        layout = server.layout_of(self._db, self.choice)
        steps = []
        if layout is None:
            if not self._read("SELECT to_regnamespace(%s) IS NOT NULL", (self.choice.schema,))[0][
                0
            ]:
                steps.append(f"CREATE SCHEMA {self.choice.schema}")
            steps.append(layouts.script("postgres.sql"))
            identity = os.urandom(6).hex()
            steps.append(f"INSERT INTO meta (key, data) VALUES ('identity', '{identity}')")
            steps.append(f"INSERT INTO meta (key, number) VALUES ('layout', {server.LAYOUT})")
        elif layout < server.LAYOUT:
            steps += [layouts.POSTGRES[old] for old in range(layout, server.LAYOUT)]
            steps.append(f"UPDATE meta SET number = {server.LAYOUT} WHERE key = 'layout'")
        if steps:
            self._db.execute(";\n".join(["BEGIN", *steps, "COMMIT"]).encode())
        row = self._db.execute("SELECT data FROM meta WHERE key = 'identity'").fetchone()
        self.identity = bytes(row[0]).decode() if row else ""

    def _check_tail(self, path: str) -> None:
        """Report a journal that is shorter than what the server once had on disk."""
        self._watermark = Watermark(path, self.identity)
        synced = self._watermark.seq
        if self._seq < synced:
            self._lost_events = synced - self._seq
            self._warnings.append(
                f"the journal ends at event {self._seq}, but event {synced} had been synced: "
                f"{self.path} has lost its last events"
            )
        self._seq = max(self._seq, synced)  # numbers once given out are not given out again

    def lost(self) -> str | None:
        """Not while the server answers; otherwise commits fail."""
        return None

    def id_floor(self) -> int:
        """The lowest id that may be new; see the port."""
        return self._watermark.next_id if self._watermark is not None else 1

    def lost_events(self) -> int:
        """How many synced events are missing; see the port."""
        return self._lost_events

    def _note_forced(self, seq: int) -> None:
        self._durable = max(self._durable, seq)
        if self._watermark is not None:
            self._watermark.note(self._durable, self._next_id)

    # -- a connection that breaks -------------------------------------------------------

    def _resume(self) -> None:
        """Connect again, and find or write again whatever is not known to be there.

        A server that crashed may have lost what it had not forced, in the order it was
        written; everything from there on is still here and is written again.
        """
        logger.warning("lost the connection to %s", self.path)
        deadline = time.monotonic() + self.patience
        while True:
            self._db.close()
            try:
                self._db = server.connect(self.choice, self._name)
                self._catch_up()
                logger.info("reconnected to %s", self.path)
                return
            except (Lost, Unreachable, StoreFull) as error:
                if time.monotonic() > deadline:
                    raise self._die(_gone(error, self.path)) from None
            except StoreError as error:
                raise self._die(error) from None
            time.sleep(0.1)

    def _catch_up(self) -> None:
        db = self._db
        try:
            server.take_lease(db, self.choice, self._name, server.HANDOVER)
            if not self._term:
                return
            db.execute("SELECT check_term(%s)", (self._term,))
            row = db.execute(_LAST).fetchone()
        except psycopg.Error as error:
            raise self._failed(error, db) from error
        found = int(row[0]) if row else 0
        if found < self._durable:
            raise StoreError(
                f"{self.path} has lost events: the last one is {found}, but {self._durable} had "
                f"been synced. This daemon stops; the next daemon continues from event {found}."
            )
        for each in self._unforced:
            if each.first > found:
                self._send(each, force=True)
                each.sent = True
        self._note_forced(self._flush(db))
        self._unforced = [each for each in self._unforced if each.last > self._durable]

    def _die(self, error: StoreError) -> StoreError:
        """Nothing goes any more: whether because of another daemon or of no server."""
        fenced = error if isinstance(error, StoreFenced) else StoreFenced(str(error))
        self._dead = fenced
        return fenced

    def _failed(self, error: psycopg.Error, db: Connection) -> Exception:
        """What an error means: Lost, or a refusal after which nothing has happened."""
        if server.is_lost(error, db):
            return Lost(str(error))
        server.forget_transaction(db)
        return server.translated(error, self.choice)

    def _read(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Ask something, again on a new connection if the old one is gone."""
        with self._lock:
            for _ in range(5):
                if self._dead is not None:
                    raise self._dead
                try:
                    return self._db.execute(sql, values, binary=True).fetchall()
                except psycopg.Error as error:
                    failed = self._failed(error, self._db)
                    if not isinstance(failed, Lost):
                        raise failed from error
                self._resume()
            raise Unreachable(f"{self.path} closes every connection.")

    # -- the port -----------------------------------------------------------------------

    def claim(self) -> int:
        """Take this state over: whoever holds an older term can no longer write."""
        with self._lock:
            self._term = 0  # a claim that got lost on its way is simply made again
            sql = "UPDATE meta SET number = number + 1 WHERE key = 'term' RETURNING number"
            self._term = int(self._read(sql)[0][0])
            return self._term

    def load(self) -> Snapshot:
        """The state, row by row, as of the last commit."""
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

    def commit(self, batch: Batch, force: bool) -> int:
        """One transaction: journal, projections, and the check that we still may write."""
        with self._lock:
            if self._dead is not None:
                raise self._dead
            force = force or not FOUND_AGAIN.issuperset(map(type, batch.events))
            written = _Written(self._seq + 1, self._seq + len(batch.events), [])
            written.statements = statements(batch, written.first)
            self._unforced.append(written)
            try:
                self._send(written, force)
                written.sent = True
            except Lost:
                self._resume()  # this one too is there and on disk, or an error is raised
            except BaseException:
                self._unforced.remove(written)
                raise
            self._seq = written.last
            if batch.rest is not None:
                self._next_id = batch.rest.next_id
            if force:
                self._unforced.clear()
                self._note_forced(self._seq)
            return self._seq

    def _send(self, written: _Written, force: bool) -> None:
        """One round trip. After anything but Lost it is certain whether it happened."""
        db = self._db
        try:
            with db.pipeline():
                db.execute("BEGIN")
                if not force:
                    db.execute("SET LOCAL synchronous_commit = off")
                db.execute("SELECT check_term(%s)", (self._term,))
                for sql, values in written.statements:
                    db.execute(sql, values)
                end = db.execute("COMMIT")
        except psycopg.Error as error:
            raise self._failed(error, db) from error
        if end.statusmessage != "COMMIT":
            raise StoreError(f"{self.path} did not commit ({end.statusmessage}).")

    def force(self) -> None:
        """Put what is committed on the server's disk, through a connection of its own."""
        with self._flushing:
            for _ in range(3):
                with self._lock:
                    if self._dead is not None:
                        raise self._dead
                    waiting = [each for each in self._unforced if each.sent]
                if not waiting:
                    return
                reached = self._flush_aside()
                if all(each.last <= reached for each in waiting):
                    with self._lock:
                        self._note_forced(reached)
                        kept = {id(each) for each in waiting}
                        self._unforced = [e for e in self._unforced if id(e) not in kept]
                    return
                self._last_seq()  # the server has forgotten: finding that out mends it
            raise StoreError(f"{self.path} lost a committed transaction.")

    def _flush_aside(self) -> int:
        deadline = time.monotonic() + self.patience
        while True:
            try:
                if self._flusher is None or self._flusher.closed:
                    self._flusher = server.connect(self.choice, server.Name.ours())
                return self._flush(self._flusher)
            except (Lost, Unreachable) as error:
                if self._flusher is not None:
                    self._flusher.close()
                if time.monotonic() > deadline:
                    raise Unreachable(str(error)) from None
            time.sleep(0.1)

    def _flush(self, db: Connection) -> int:
        try:
            row = db.execute(_FLUSH, (self._term,)).fetchone()
        except psycopg.Error as error:
            raise self._failed(error, db) from error
        if row is None:
            raise StoreFenced("Another daemon has taken over this state; this one stops.")
        return int(row[0])

    def events(self, after: int, most: int) -> Iterator[tuple[int, Event]]:
        """Events behind a sequence number, in order."""
        rows = self._read(
            "SELECT seq, kind, version, data FROM events WHERE seq > %s ORDER BY seq LIMIT %s",
            (after, most),
        )
        for seq, kind, version, data in rows:
            yield seq, codec.decode_event(kind, version, data)

    def blob(self, hash: str) -> bytes | None:
        """A script by its hash."""
        return self._one("SELECT data FROM blobs WHERE hash = %s", hash)

    def secret(self, hash: str) -> bytes | None:
        """An environment by its hash."""
        return self._one("SELECT data FROM secrets WHERE hash = %s", hash)

    def _one(self, sql: str, key: str) -> bytes | None:
        rows = self._read(sql, (key,))
        return bytes(rows[0][0]) if rows else None

    def find_key(self, key: str) -> tuple[int, int] | None:
        """The ids that a submission key was given."""
        rows = self._read("SELECT first, count FROM submissions WHERE key = %s", (storable(key),))
        return (rows[0][0], rows[0][1]) if rows else None

    def past(self, wanted: JobQuery) -> list[StoredJob]:
        """Jobs by id, those of an array, or finished ones by what became of them; oldest first."""
        where, values = conditions(wanted)
        order = "ended_at DESC NULLS LAST, id DESC" if wanted.array is None else "id DESC"
        rows = self._read(
            "SELECT jobs.data, specs.data FROM jobs JOIN specs ON specs.hash = jobs.spec"
            f" WHERE {where} ORDER BY {order} LIMIT %s",
            (*values, max(wanted.limit, len(wanted.ids or ()))),
        )
        return codec.found_in(rows[::-1], self._warnings)

    def count_past(self, wanted: JobQuery) -> int:
        """How many jobs match, whatever the limit."""
        where, values = conditions(wanted)
        sql = f"SELECT count(*) FROM jobs JOIN specs ON specs.hash = jobs.spec WHERE {where}"
        return int(self._read(sql, tuple(values))[0][0])

    def members(self, array: int) -> list[int]:
        """The ids of all jobs of an array or a sweep, in order."""
        rows = self._read("SELECT id FROM jobs WHERE member_of = %s ORDER BY id", (array,))
        return [row[0] for row in rows]

    def warnings(self) -> list[str]:
        """What was found wrong at opening."""
        return self._warnings

    def backup(self, path: str) -> int:
        """A consistent copy as SQL, made by pg_dump while work goes on."""
        from stoker.store.postgres_backup import dump

        return dump(self.choice, path)

    def purge(self, before: float, kept: Collection[str] = ()) -> None:
        """Drop environments that only jobs ended before this time used."""
        self._read(
            "WITH gone AS (DELETE FROM secrets WHERE hash <> ALL (%s) AND hash NOT IN ("
            "SELECT environment FROM specs WHERE hash IN ("
            "SELECT spec FROM jobs WHERE ended_at IS NULL OR ended_at >= %s"
            " OR state <> ALL (%s))) RETURNING 1) SELECT count(*) FROM gone",
            (list(kept), before, ENDED),
        )

    def close(self) -> None:
        """Force, and let go of the lease."""
        if self._dead is None and self._unforced:
            self.patience = min(self.patience, 2.0)  # what it has not written, claims tell again
            with contextlib.suppress(StoreError):
                self.force()
        self._dead = self._dead or StoreError("This store is closed.")
        for db in (self._flusher, self._db):
            if db is not None:
                db.close()
        if self._watermark is not None:
            self._watermark.close()


def _gone(error: Exception, path: str) -> StoreError:
    text = str(error) if isinstance(error, Unreachable) else f"{path} cannot be reached."
    return StoreError(
        f"{text} The last changes may not have been stored: check the queue before repeating "
        "them. Running jobs continue; the next daemon recovers them."
    )
