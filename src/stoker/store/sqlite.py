"""The journal in SQLite: one file, one writer, readable by hand."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

from stoker import places
from stoker.store import codec, replacement
from stoker.store.migrations import SCHEMA, create, migrate
from stoker.store.port import Batch, Snapshot, StoreError, StoreFenced, StoreFull
from stoker.store.sql_reader import FINISHED_STATES, SqlReader
from stoker.store.watermark import Watermark

RESERVE_BYTES = 4 << 20
"""Disk space released when the disk is full, so that exits can still be recorded."""

_WRITE_JOB = """
    INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET
        name = excluded.name, state = excluded.state, started_at = excluded.started_at,
        ended_at = excluded.ended_at, code = excluded.code, resident = excluded.resident,
        spec = excluded.spec, data = excluded.data
"""
"""Updated in place, so that only indexes of changed columns are written."""
_MEMBERS = """
    SELECT jobs.data FROM sweeps CROSS JOIN jobs ON jobs.member_of = sweeps.id
    WHERE sweeps.resident = 1 AND jobs.resident = 0 ORDER BY jobs.id
"""
"""CROSS forces the join order: otherwise SQLite may read every job."""
_WAS_USED = "SELECT EXISTS (SELECT 1 FROM events WHERE kind = 'DaemonStarted')"
"""The first event of every daemon comes with the state summary."""
_ENVIRONMENT_ERRORS = frozenset(
    {
        sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOLFS,
        sqlite3.SQLITE_AUTH,
    }
)  # fmt: skip
"""Errors of the disk, of permissions or of other processes: a repair would not help."""
MAX_NEWER_LAYOUTS = 50
"""A layout number more than this above ours is damage, not a newer stoker."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


class SqliteStore(SqlReader):
    """The journal in WAL mode; `sync` puts commits on disk, off the hot path."""

    USER_COLUMN = "user"
    ID_CONDITION = "jobs.id IN (SELECT value FROM json_each(?))"

    def __init__(self, path: str, *, shared_file_system: bool = False) -> None:
        super().__init__()
        self.path = path
        self._term = 0
        self._seq = 0
        self._next_id = 1
        self._damage: Exception | None = None
        """Damage that is not repaired yet: the next load repairs it."""
        self._repaired = False
        """Whether a damaged file was replaced when this store was opened."""
        self._emergency_paths = (path + replacement.EMERGENCY, places.emergency_path(path))
        self._emergency_copy: tuple[str, int] | None = None
        """Path and last event of the copy written because the journal was deleted."""
        self._db_lock = threading.RLock()
        self._wal_lock = threading.Lock()
        self._wal_is_suspect = False
        """Whether a sync of the write-ahead log has failed."""
        self._watermark = Watermark(path + ".watermark", earlier=path + ".forced")
        self._shared, self._wal = shared_file_system, -1
        with _private_files(path):
            self._find_journal(path)
            self._db = self._open(path)
        self._remember_files()
        self._check_tail()
        self.reserve_space()

    # -- opening ------------------------------------------------------------------------

    def _find_journal(self, path: str) -> None:
        """Move the newest journal to `path`: a finished repair, an emergency copy, or the file."""
        replacement.finish(path)
        self._use_emergency_copy(path)
        if not replacement.has_content(path) and replacement.has_content(path + "-wal"):
            self._repair(path, StoreError("only its write-ahead log exists"))
        elif replacement.find_beside(path, replacement.DAMAGED) and replacement.is_empty(path):
            from stoker.store.salvage import rebuild

            self._repaired = rebuild(path, self._watermark.seq) is not None

    def _use_emergency_copy(self, path: str) -> None:
        """Restore the copy that a daemon wrote when the journal was deleted, if it is newer."""
        copies = [copy for copy in self._emergency_paths if os.path.exists(copy)]
        if not copies:
            return
        newest = max(copies, key=lambda copy: replacement.last_event(copy) or 0)
        last = 0 if replacement.is_empty(path) else replacement.last_event(path)
        if last is None or (replacement.last_event(newest) or 0) <= last:
            return  # a journal that cannot be read may still be newer than the copy
        if not replacement.is_continuation(newest, path):
            self._warnings.append(
                f"{newest} is a copy of a deleted journal, and a new journal has been created "
                "since; see docs/recovery.md for how to continue from the copy"
            )
            return
        part = path + ".repair"
        replacement.discard(part)
        import shutil

        shutil.copyfile(newest, part)
        replacement.replace(path, part, replacement.new_stamp(path))
        for copy in copies:
            os.unlink(copy)
        self._warnings.append(
            "the journal was deleted while a daemon ran and was restored from its emergency copy"
        )

    def _remember_files(self) -> None:
        """Remember which files are open; open a second descriptor on the log for `sync`."""
        self._file = os.stat(self.path)
        if not self._shared:
            self._wal = os.open(self.path + "-wal", os.O_RDONLY | os.O_CLOEXEC)

    def _close_wal(self) -> None:
        if self._wal >= 0:
            os.close(self._wal)
            self._wal = -1

    def _open(self, path: str, repair: bool = True) -> sqlite3.Connection:
        repair = repair and os.path.exists(path)
        try:
            db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            db.text_factory = replacement.decode_text
            try:
                if self._shared:
                    # WAL needs shared memory, which network file systems do not have.
                    db.execute("PRAGMA locking_mode = EXCLUSIVE")
                    db.execute("PRAGMA journal_mode = DELETE")
                    db.execute("PRAGMA synchronous = FULL")
                else:
                    db.execute("PRAGMA journal_mode = WAL")
                    db.execute("PRAGMA synchronous = NORMAL")
                    db.execute("PRAGMA wal_autocheckpoint = 2000")
                db.execute("PRAGMA busy_timeout = 5000")
                self._create_or_migrate(db, path)
                return db
            except BaseException:
                db.close()
                raise
        except (sqlite3.Error, *codec.DAMAGE) as error:
            if not repair or not _is_damage(error, path):
                raise _translate(error, path) from error
            self._repair(path, error)
            return self._open(path, repair=False)

    def _create_or_migrate(self, db: sqlite3.Connection, path: str) -> None:
        """Create the tables of a new file, or check and migrate those of an old one."""
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            create(db)
            return
        if SCHEMA < version <= SCHEMA + MAX_NEWER_LAYOUTS:
            raise StoreError(
                f"{path} was written by a newer stoker (layout {version}; this version supports "
                f"{SCHEMA}). Upgrade stoker, or set STOKER_HOME to another directory."
            )
        if not 0 < version <= SCHEMA:
            raise sqlite3.DatabaseError(f"unknown layout {version}")
        _check(db)
        migrate(db, version)
        report = db.execute("SELECT value FROM meta WHERE key = 'repair'").fetchone()
        if report is not None and str(report[0]) not in self._warnings:
            self._warnings.append(str(report[0]))

    def _repair_open_file(self, cause: Exception) -> None:
        """Repair damage that was found after opening: in rows, in indexes, or new."""
        logger.error("the journal is damaged: %s", cause)
        self._damage = cause  # stays set if the repair fails
        self._db.close()
        self._close_wal()
        with _private_files(self.path):
            self._repair(self.path, cause)
            self._db = self._open(self.path, repair=False)
        self._remember_files()
        self._damage = None
        if self._term:  # the daemon that runs keeps its term
            with self._transaction():
                self._db.execute("UPDATE meta SET value = ? WHERE key = 'term'", (self._term,))

    def _repair(self, path: str, cause: Exception) -> None:
        """Replace a damaged file by what is readable of it."""
        from stoker.store.salvage import salvage

        salvage(path, cause, self._watermark.seq)
        self._repaired = True

    def _check_tail(self) -> None:
        """Warn if events that were synced are missing."""
        last, synced = self._last_seq(), self._watermark.seq
        if last < synced and not self._repaired:
            self._lost_events = synced - last
            self._warnings.append(
                f"the journal ends at event {last}, but event {synced} had been synced: "
                "the last events are missing, after a crash or because an older copy was restored"
            )
        self._seq = max(last, synced)  # sequence numbers are never reused

    def durability_warning(self) -> str | None:
        """Return a warning if the journal's files were deleted or moved."""
        if self._is_in_place():
            return None
        copy = (self._emergency_copy or self._emergency_paths)[0]
        return (
            f"{self.path} was deleted or moved while the daemon runs, so no job can be queued; "
            f"its content was saved to {copy}. To continue from it: stoker daemon restart"
        )

    def _is_in_place(self) -> bool:
        if not places.leads_to(self.path, self._file):
            return False
        return self._wal < 0 or places.leads_to(f"{self.path}-wal", os.fstat(self._wal))

    def _write_emergency_copy(self) -> None:
        """Write the journal to another file, since its own was deleted."""
        if self._emergency_copy is not None:
            path, seq = self._emergency_copy
            if seq == self._seq and os.path.exists(path):
                return
        errors = []
        for path in self._emergency_paths:
            try:
                directory = places.secure_dir(os.path.dirname(path))
                replacement.discard(part := path + ".part")
                with self._db_lock:
                    seq = self._seq
                    self.backup(part)
                replacement.sync(part)
                os.rename(part, path)
                replacement.sync(directory)
            except (OSError, StoreError, places.UnsafeDirectory) as error:
                errors.append(str(error))
            else:
                logger.warning("the journal was deleted; its content was saved to %s", path)
                self._emergency_copy = path, seq
                return
        raise StoreError(f"{self.path} was deleted and no copy can be written: {errors[0]}")

    def id_floor(self) -> int:
        """Return the lowest id that may be new; see the port."""
        return self._watermark.next_id

    def reserve_space(self) -> None:
        """Reserve disk space if it is not reserved and there is enough."""
        reserve = self.path + ".ballast"
        with contextlib.suppress(OSError):
            if not os.path.exists(reserve):
                fd = os.open(reserve, os.O_WRONLY | os.O_CREAT, 0o600)
                try:
                    os.posix_fallocate(fd, 0, RESERVE_BYTES)
                finally:
                    os.close(fd)

    def release_reserve(self) -> bool:
        """Release the reserved space; return False if there is none."""
        try:
            os.unlink(self.path + ".ballast")
        except OSError:
            return False
        return True

    # -- the port -----------------------------------------------------------------------

    def acquire_term(self) -> int:
        """Take over this state: daemons with an older term can no longer write."""
        with self._transaction():
            self._db.execute("UPDATE meta SET value = value + 1 WHERE key = 'term'")
            self._db.execute("DELETE FROM meta WHERE key = 'repair'")
            row = self._db.execute("SELECT value FROM meta WHERE key = 'term'").fetchone()
        self._term = int(row[0])
        return self._term

    def load(self) -> Snapshot:
        """Return the state as of the last commit; repair the file if it is damaged."""
        if self._damage is not None:
            self._repair_open_file(self._damage)
        return self._read(self._load)

    def _last_seq(self) -> int:
        return int(self._db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])

    def _load(self) -> Snapshot:
        row = self._db.execute("SELECT value FROM meta WHERE key = 'rest'").fetchone()
        if row is None and self._db.execute(_WAS_USED).fetchone()[0]:
            raise sqlite3.DatabaseError("the state summary is missing")
        rest = codec.decode_rest(row[0] if row else b"{}")
        jobs = [
            codec.decode_job(data)
            for (data,) in self._db.execute("SELECT data FROM jobs WHERE resident = 1 ORDER BY id")
        ]
        sweeps = self._db.execute("SELECT data FROM sweeps ORDER BY id").fetchall()
        members = self._db.execute(_MEMBERS).fetchall() if sweeps else []
        hashes = {job.spec for job in jobs}
        specs = {}
        for hash in hashes:
            row = self._db.execute("SELECT data FROM specs WHERE hash = ?", (hash,)).fetchone()
            if row is None:
                raise sqlite3.DatabaseError(f"the submission {hash} is missing")
            specs[hash] = codec.decode_spec(row[0])
        self._seq = max(self._seq, self._last_seq())
        return Snapshot(
            seq=self._seq,
            rest=rest,
            jobs=jobs,
            specs=specs,
            sweeps=[codec.decode_sweep(data) for (data,) in sweeps],
            members=[codec.decode_job(data) for (data,) in members],
        )

    def commit(self, batch: Batch, sync: bool) -> int:
        """Write events and projections in one transaction, unless the term is outdated."""
        db, encode = self._db, codec.encode
        seq = self._seq
        if sync and self._wal_is_suspect:
            self.sync()
        with self._transaction(sync):
            if batch.specs:
                db.executemany(
                    "INSERT OR IGNORE INTO specs VALUES (?, ?, ?, ?)",
                    [
                        (hash, encode(spec), spec.queue, spec.client)
                        for hash, spec in batch.specs.items()
                    ],
                )
            for table, blobs in (("blobs", batch.blobs), ("secrets", batch.secrets)):
                if blobs:
                    db.executemany(f"INSERT OR IGNORE INTO {table} VALUES (?, ?)", blobs.items())
            if batch.keys:
                db.executemany("INSERT INTO submissions VALUES (?, ?, ?)", batch.keys)
            term = self._term
            written = db.executemany(
                "INSERT INTO events SELECT ?, ?, ?, ?, ?"
                " WHERE (SELECT value FROM meta WHERE key = 'term') = ?",
                [
                    (number, event.at, codec.event_kind(event), codec.VERSION, encode(event), term)
                    for number, event in enumerate(batch.events, seq + 1)
                ],
            )
            if written.rowcount != len(batch.events):
                raise StoreFenced("Another daemon has taken over this state; this one stops.")
            if batch.jobs:
                self._write_jobs(batch)
            if batch.dropped:
                db.executemany(
                    "UPDATE jobs SET resident = 0 WHERE id = ?", [(id,) for id in batch.dropped]
                )
            if batch.sweeps:
                self._write_sweeps(batch)
            if batch.rest is not None:
                db.execute("INSERT OR REPLACE INTO meta VALUES ('rest', ?)", (encode(batch.rest),))
        self._seq = seq + len(batch.events)
        if batch.rest is not None:
            self._next_id = batch.rest.next_id
        if sync:
            self._watermark.note(self._seq, self._next_id)
        return self._seq

    def _write_jobs(self, batch: Batch) -> None:
        encode = codec.encode
        self._db.executemany(
            _WRITE_JOB,
            [
                (
                    job.id, job.name, job.user, job.state.value, job.submitted_at, job.started_at,
                    job.ended_at, job.code, 1, job.spec, encode(job), job.array,
                )
                for job in batch.jobs
            ],
        )  # fmt: skip

    def _write_sweeps(self, batch: Batch) -> None:
        self._db.executemany(
            "INSERT OR REPLACE INTO sweeps VALUES (?, ?, ?, ?)",
            [(sweep.id, sweep.name, sweep.resident, codec.encode(sweep)) for sweep in batch.sweeps],
        )

    @contextlib.contextmanager
    def _transaction(self, sync: bool = False) -> Iterator[None]:
        db = self._db
        try:
            self._db_lock.acquire()  # a backup in another thread must not see half of it
            try:
                if sync:
                    db.execute("PRAGMA synchronous = FULL")
                db.execute("BEGIN IMMEDIATE")
                yield
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            finally:
                self._db_lock.release()
                if sync and not self._shared:
                    db.execute("PRAGMA synchronous = NORMAL")
        except sqlite3.Error as error:
            if not isinstance(error, sqlite3.IntegrityError) and _is_damage(error, self.path):
                self._damage = error
            raise _translate(error, self.path) from error

    def sync(self) -> None:
        """Put what is committed on disk, through a separate descriptor on the log.

        SQLite's commit in NORMAL mode has already written it there; closing this descriptor
        releases no lock, since SQLite locks the database and its index, never the log.
        """
        with self._wal_lock:
            seq, next_id = self._seq, self._next_id
            if not self._is_in_place():
                self._write_emergency_copy()
            elif self._wal < 0:
                return
            elif self._wal_is_suspect:
                self._restart_wal()
            else:
                try:
                    os.fdatasync(self._wal)
                except OSError:
                    self._wal_is_suspect = True
                    raise
            self._watermark.note(seq, next_id)
            self._watermark.sync()

    def _restart_wal(self) -> None:
        """Copy the log into the database and truncate it.

        After a failed sync the kernel marks pages clean that are not on disk, so that the next
        sync of the same file would succeed without them.
        """
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=5.0)) as db:
                busy, *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            raise _translate(error, self.path) from error
        if busy:
            raise StoreError(f"{self.path} is locked by another program; stoker retries.")
        self._wal_is_suspect = False

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        return self._read(lambda: self._db.execute(sql, values).fetchall())

    def _read(self, read: Callable[[], T]) -> T:
        """Return what is read; if the file is damaged, repair it and read again."""
        try:
            return read()
        except (sqlite3.Error, *codec.DAMAGE) as error:
            if not _is_damage(error, self.path):
                raise _translate(error, self.path) from error
            self._repair_open_file(error)
        try:
            return read()
        except sqlite3.Error as error:
            raise _translate(error, self.path) from error

    def backup(self, path: str) -> int:
        """Write a consistent copy, page by page."""
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except OSError as error:
            raise StoreError(f"Cannot write {path}: {error.strerror}.") from error
        os.close(fd)
        copy = sqlite3.connect(path)
        try:
            with self._db_lock:
                self._db.backup(copy)
        except sqlite3.Error as error:
            raise _translate(error, path) from error
        finally:
            copy.close()
        return os.stat(path).st_size

    def purge(self, before: float, kept: Collection[str] = ()) -> None:
        """Delete environments that only jobs used that ended before this time."""
        with self._transaction():
            self._db.execute(
                "DELETE FROM secrets WHERE hash NOT IN (SELECT value FROM json_each(?) UNION "
                "SELECT CAST(specs.data AS TEXT) ->> '$.environment' FROM specs WHERE hash IN ("
                "SELECT spec FROM jobs WHERE ended_at IS NULL OR ended_at >= ?"
                " OR state NOT IN (SELECT value FROM json_each(?))))",
                (codec.encode(list(kept)).decode(), before, codec.encode(FINISHED_STATES).decode()),
            )

    def close(self) -> None:
        """Sync, let SQLite copy the log into the database, and close."""
        with contextlib.suppress(OSError, StoreError):
            self.sync()
        self._close_wal()
        self._watermark.close()
        self._db.close()


@contextlib.contextmanager
def _private_files(path: str) -> Iterator[None]:
    """Create files that only their owner can read; translate errors."""
    old_mask = os.umask(0o077)
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise _translate(error, path) from error
    finally:
        os.umask(old_mask)


def _is_damage(error: Exception, path: str) -> bool:
    """Return True if the file is damaged, not the disk or the permissions."""
    if isinstance(error, sqlite3.ProgrammingError):
        return False  # the connection is closed
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code == sqlite3.SQLITE_READONLY:
        return os.access(path, os.W_OK)  # only its header says that it is read-only
    return code not in _ENVIRONMENT_ERRORS


def _check(db: sqlite3.Connection) -> None:
    """Check for damage, in indexes too: an entry that leads to another row hides a job."""
    result = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if result != "ok":
        raise sqlite3.DatabaseError(result.splitlines()[-1])
    term = "SELECT count(*) FROM meta WHERE key = 'term' AND typeof(value) = 'integer'"
    if db.execute(term).fetchone()[0] != 1:
        raise sqlite3.DatabaseError("the term of the journal is missing")


def _translate(error: Exception, path: str) -> StoreError:
    text = str(error)
    if places.is_disk_full(error) or "full" in text or "disk I/O" in text:
        return StoreFull(f"The disk with {path} is full. Free some space; nothing was lost.")
    if not isinstance(error, OSError) and _is_damage(error, path):
        return StoreError(f"{path} is damaged ({text}) and is being repaired. Try again.")
    return StoreError(f"{path}: {text}.")
