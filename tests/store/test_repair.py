"""Damaged journals: any damage, and interruptions of the repair at any step."""

import errno
import os
import random
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.sim_fixture import SimFixture
from simulation.simulated_machine import Model
from stoker.core.state.restore import restore
from stoker.store import codec, replacement, salvage, sqlite
from stoker.store.port import JobQuery, StoreError, StoreFull
from stoker.store.sqlite import SqliteStore
from store.rows import batch, job, rest

JOBS = 60
LAYOUT = 60
"""Where a database says which layout it has."""
STEPS = {module.__file__ for module in (salvage, replacement, sqlite)}


@pytest.fixture(scope="session")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal with finished, running and pending jobs."""
    path = tmp_path_factory.mktemp("lived") / "journal.db"
    stores: list[SqliteStore] = []

    def open_store() -> SqliteStore:
        stores.append(SqliteStore(str(path)))
        return stores[-1]

    box = SimFixture(gpus=2, open_store=open_store)
    box.submit(models=(Model(seconds=5),), count=20)
    box.submit(models=(Model(seconds=1e6),), count=2)
    box.submit(held=True, count=JOBS - 22)
    box.run(100)
    stores[-1].close()
    return path


@pytest.fixture
def path(lived: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return copied(lived, tmp_path)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory, if there is one: a sync costs nothing."""
    with in_memory() as where:
        yield where


@contextmanager
def in_memory() -> Iterator[Path]:
    shared = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=shared if os.path.isdir(shared) else None) as where:
        yield Path(where)


def copied(path: Path, directory: Path) -> Path:
    """Copy the files of a journal, except the reserve, to another directory."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for each in path.parent.iterdir():
        if each.is_file() and not each.name.endswith(".ballast"):
            shutil.copy(each, directory / each.name)
    return directory / path.name


def kept(path: Path) -> list[str]:
    return replacement.find_beside(str(path), replacement.DAMAGED)


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        for each in statements:
            db.execute(each)


def every_job(path: Path) -> set[int]:
    """Return all jobs of a journal after it was opened, loaded or not."""
    store = SqliteStore(str(path))
    try:
        store.load()
        return {each.job.id for each in store.find_jobs(JobQuery(ids=list(range(1, JOBS + 1))))}
    finally:
        store.close()


def next_id(store: SqliteStore) -> int:
    """Return the id of the next job."""
    return max(store.load().rest.next_id, store.id_floor())


# -- one byte -----------------------------------------------------------------------------


def test_an_index_entry_of_another_row_hides_no_job(path: Path):
    before, pages = every_job(path), path.read_bytes()
    entry = bytes((3, 1, 1, JOBS, JOBS))  # a header, the indexed id, the id of the row
    assert pages.count(entry) == 1
    path.write_bytes(pages.replace(entry, entry[:-1] + bytes((JOBS - 1,))))
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA quick_check").fetchall() == [("ok",)]
    assert JOBS in facts_of(path)
    assert every_job(path) == before


@pytest.mark.parametrize("id", [1, 21])
@pytest.mark.parametrize("how", ["not UTF-8", "another letter"])
def test_one_damaged_byte_anywhere_in_a_row_changes_no_job(
    lived: Path, memory: Path, id: int, how: str
) -> None:
    """Also in a key, which a decoder skips as unknown."""
    before = facts_of(copied(lived, memory / "whole"))
    with closing(sqlite3.connect(lived)) as db:
        (data,) = db.execute("SELECT data FROM jobs WHERE id = ?", (id,)).fetchone()
    for at in range(0, len(data), 3):
        new = b"\xff" if how == "not UTF-8" else bytes([data[at] ^ 1])
        path = copied(lived, memory / "damaged")
        with closing(sqlite3.connect(path)) as db, db:
            damaged = data[:at] + new + data[at + 1 :]
            db.execute("UPDATE jobs SET data = ? WHERE id = ?", (damaged, id))
        assert facts_of(path) == before, damaged


def facts_of(path: Path) -> dict[int, object]:
    """Return the loaded jobs of a journal."""
    store = SqliteStore(str(path))
    try:
        return {each.id: codec.encode(each) for each in store.load().jobs}
    finally:
        store.close()


# -- interrupted --------------------------------------------------------------------------


class Interruption:
    """Traces the repair, and interrupts it at the n-th state of the files."""

    def __init__(self, directory: Path, step: int, interrupt: Callable[[], None]) -> None:
        self.directory, self.step, self.interrupt = directory, step, interrupt
        self.states: set[frozenset[tuple[object, ...]]] = set()
        self.happened = False

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in STEPS:
            return None
        if event == "line" and not self.happened:
            with os.scandir(self.directory) as found:
                self.states.add(frozenset((each.name, *each.stat()) for each in found))
            self.happened = len(self.states) == self.step
            if self.happened:
                self.interrupt()
        return self._trace


def full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupted(path: Path, step: int, kind: str) -> bool:
    """Open a journal with an interruption; return whether the step was reached."""
    if kind == "an error":
        interruption = Interruption(path.parent, step, full)
        with interruption, suppress(StoreError, OSError), closing(SqliteStore(str(path))) as store:
            store.load()
        return interruption.happened
    pid = os.fork()
    if pid == 0:
        try:
            with Interruption(path.parent, step, lambda: os._exit(9)):
                SqliteStore(str(path)).load()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, 9)
    return status == 9


def spoilt_page(path: Path) -> None:
    """Overwrite a page in the middle of a table."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(b"\xff" * 4096)


def spoilt_text(path: Path) -> None:
    """Make one byte of one row invalid UTF-8; the file itself is intact."""
    change(path, "UPDATE jobs SET data = replace(data, 'e', x'ff') WHERE id = 41")


def no_first_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(4096))


@pytest.mark.parametrize(
    ("harm", "how"),
    [
        (spoilt_page, "a kill"),
        (spoilt_text, "a kill"),
        (no_first_page, "a kill"),
        (spoilt_text, "an error"),
    ],
)
def test_a_repair_interrupted_at_any_step_is_repeated(
    lived: Path, memory: Path, harm: Callable[[Path], None], how: str
):
    whole = copied(lived, memory / "whole")
    harm(whole)
    damaged = copied(whole, memory / "damaged")
    expected = every_job(whole)
    assert len(expected) > JOBS - 20
    for step in range(1, 1000):
        path = copied(damaged, memory / "interrupted")
        if not interrupted(path, step, how):
            break
        assert every_job(path) == expected, step
        assert len(kept(path)) == 1, step
    assert 15 < step < 999


def test_a_repair_that_is_interrupted_at_every_start_completes(lived: Path, memory: Path):
    path = copied(lived, memory / "home")
    spoilt_page(path)
    for step in range(1, 1000):
        if not interrupted(path, step, "a kill"):
            break
    assert 15 < step < 999
    store = SqliteStore(str(path))
    assert next_id(store) == JOBS + 1
    store.close()
    assert len(every_job(path)) > JOBS - 20


def test_the_result_of_an_interrupted_repair_is_reported(path: Path):
    spoilt_text(path)
    salvage.salvage(str(path), ValueError("test"))
    for _ in range(2):  # until a daemon has recovered it
        store = SqliteStore(str(path))
        assert f"events and {JOBS} jobs were recovered" in store.warnings()[0]
        store.close()
    store = SqliteStore(str(path))
    store.acquire_term()
    store.close()
    store = SqliteStore(str(path))
    assert store.warnings() == []
    store.close()


def test_no_log_of_the_damaged_file_is_left_beside_the_new_one(path: Path):
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("UPDATE jobs SET data = x'ff' WHERE id = 41")
        db.commit()
        crashed = copied(path, path.parent / "crashed")
    assert Path(f"{crashed}-wal").stat().st_size
    Path(f"{crashed}-journal").write_bytes(b"of the damaged file")
    salvage.salvage(str(crashed), ValueError("test"))
    assert [each for each in replacement.SIDE_FILES if Path(f"{crashed}{each}").exists()] == []
    assert every_job(crashed) == set(range(1, JOBS + 1))


# -- no journal, but a damaged one --------------------------------------------------------


@pytest.mark.parametrize("begun", [False, True], ids=["none", "an empty one in its place"])
def test_without_a_journal_a_damaged_file_is_repaired_and_reported(path: Path, begun: bool):
    older = Path(f"{path}.damaged-20200101T000000")
    older.write_bytes(b"garbage" * 1000)
    damaged = Path(f"{path}.damaged-20210101T000000")
    path.rename(damaged)
    spoilt_text(damaged)
    if begun:
        with closing(sqlite3.connect(path)) as db:
            sqlite.create(db)
    store = SqliteStore(str(path))
    [said] = store.warnings()
    assert said.startswith(
        f"the journal was missing and was rebuilt from the damaged file {damaged}"
    )
    assert "they are held" not in said
    store.close()
    assert every_job(path) == set(range(1, JOBS + 1))
    assert older.exists()
    assert damaged.exists()


@pytest.mark.parametrize("copy", [".damaged-20210101T000000", replacement.EMERGENCY])
def test_a_journal_with_unreadable_events_is_not_replaced_by_an_older_one(path: Path, copy: str):
    path.with_name(path.name + copy).write_bytes(path.read_bytes())
    with closing(SqliteStore(str(path))) as store:
        store.acquire_term()
        store.commit(batch(job(JOBS + 1), rest=rest(next_id=JOBS + 2)), sync=True)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'events'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    with open(path, "r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    with closing(SqliteStore(str(path))) as store:
        assert store.find_jobs(JobQuery(ids=[JOBS + 1], limit=1)) or any(
            each.id == JOBS + 1 for each in store.load().jobs
        )
        assert next_id(store) > JOBS + 1


def test_jobs_of_a_damaged_file_that_was_not_the_last_journal_are_held(path: Path):
    store = SqliteStore(str(path))
    store.acquire_term()
    path.with_name("journal.db.damaged-20210101T000000").write_bytes(path.read_bytes())
    store.commit(batch(job(1)), sync=True)
    store.close()
    path.unlink()
    again = SqliteStore(str(path))
    assert (
        f"{JOBS - 20} jobs (21 to {JOBS}) may have progressed further than "
        "recorded" in again.warnings()[0]
    )
    assert all(each.held for each in again.load().jobs if not each.finished)
    again.close()


def test_a_log_without_its_database_is_read_too(tmp_path: Path):
    path = tmp_path / "journal.db"
    store = SqliteStore(str(path))
    store.acquire_term()
    store.commit(batch(job(1), job(2), rest=rest(next_id=3)), sync=True)
    crashed = copied(path, tmp_path / "crashed")
    store.close()
    crashed.unlink()
    again = SqliteStore(str(crashed))
    assert [each.id for each in again.load().jobs] == [1, 2]
    assert "only its write-ahead log exists" in again.warnings()[0]
    again.close()


# -- ids ----------------------------------------------------------------------------------


def given_out(path: Path, count: int) -> None:
    """Create a journal with jobs that were submitted one by one before a crash."""
    store = SqliteStore(str(path))
    store.acquire_term()
    for id in range(1, count + 1):
        store.commit(batch(job(id), rest=rest(next_id=id + 1)), sync=True)
    copied(path, path.parent / "crashed")
    store.close()


def remains_after(path: Path, *lost: str) -> SqliteStore:
    crashed = path.parent / "crashed" / path.name
    for suffix in lost:
        Path(f"{crashed}{suffix}").unlink(missing_ok=True)
    return SqliteStore(str(crashed))


@pytest.mark.parametrize(
    "lost",
    [("-wal",), ("-wal", ".forced"), ("", "-wal", "-shm"), ("", "-wal", "-shm", ".forced")],
    ids=["log", "log, as for a restore", "all", "all, as for a restore"],
)
def test_ids_that_the_journal_has_lost_are_not_reused(tmp_path: Path, lost: tuple[str, ...]):
    given_out(tmp_path / "journal.db", 82)
    store = remains_after(tmp_path / "journal.db", *lost)
    assert next_id(store) == 83
    assert store.lost_events() == 82
    assert "event 82 had been synced" in store.warnings()[0]
    store.close()


def test_a_journal_without_losses_reports_none(tmp_path: Path):
    given_out(tmp_path / "journal.db", 3)
    store = remains_after(tmp_path / "journal.db")
    assert (next_id(store), store.lost_events(), store.warnings()) == (4, 0, [])
    store.close()


def test_the_watermark_of_an_older_release_counts(tmp_path: Path):
    path = tmp_path / "journal.db"
    Path(f"{path}.forced").write_text("17\n")
    store = SqliteStore(str(path))
    assert "event 17 had been synced" in store.warnings()[0]
    store.acquire_term()
    assert store.commit(batch(job(1)), sync=True) == 18
    store.close()
    assert not Path(f"{path}.forced").exists()


def test_a_deleted_watermark_is_written_again(tmp_path: Path):
    path = tmp_path / "journal.db"
    store = SqliteStore(str(path))
    store.acquire_term()
    store.commit(batch(job(1), rest=rest(next_id=2)), sync=True)
    Path(f"{path}.watermark").unlink()
    store.commit(batch(job(2), rest=rest(next_id=3)), sync=True)
    assert Path(f"{path}.watermark").read_text() == "2 3\n"
    store.close()


@pytest.mark.parametrize("content", ["", "\n", "x y\n", "5", "-3 -4\n", "9" * 200])
def test_an_invalid_watermark_is_ignored(tmp_path: Path, content: str):
    path = tmp_path / "journal.db"
    Path(f"{path}.watermark").write_text(content)
    store = SqliteStore(str(path))
    store.acquire_term()
    assert store.commit(batch(job(1)), sync=True) >= 1
    store.close()


# -- damage of any kind -------------------------------------------------------------------

TEXTS = [
    ("jobs", "data", "id = 41"),
    ("jobs", "data", "id = 3"),
    ("jobs", "name", "id = 41"),
    ("jobs", "spec", "id = 41"),
    ("specs", "data", "1"),
    ("specs", "hash", "1"),
    ("events", "data", "seq = 9"),
    ("events", "kind", "seq = 9"),
    ("meta", "value", "key = 'rest'"),
    ("meta", "value", "key = 'term'"),
    ("submissions", "key", "1"),
    ("secrets", "data", "1"),
]
VALUES = ["x'ff'", "CAST(x'ff' AS TEXT)", "'{'", "7", "0.5", "'null'", "'[]'", "zeroblob(9)"]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(("table", "column", "where"), TEXTS)
def test_an_invalid_value_is_damage_and_not_a_crash(
    path: Path, table: str, column: str, where: str, value: str
):
    change(path, f"UPDATE OR IGNORE {table} SET {column} = {value} WHERE {where}")
    found = every_job(path)
    missing = set(range(1, JOBS + 1)) - found
    # An unloaded finished job is not read when the journal is opened.
    assert missing <= {3, 41}, value
    store = SqliteStore(str(path))
    assert next_id(store) == JOBS + 1
    store.close()


damage = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=48)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(damage, st.booleans())
def test_damaged_bytes_anywhere_are_repaired(lived: Path, places: list[Any], torn: bool):
    with in_memory() as directory:
        path = copied(lived, directory / "home")
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(LAYOUT)
            layout = file.read(4)
            for where, data in places:
                file.seek(int(where * size))
                file.write(data)
            file.seek(LAYOUT)
            file.write(layout)  # another number is that of another release, and rejected
            file.truncate(size - 5000 if torn else size)
        survives(path)


def survives(path: Path) -> None:
    """Open, load, continue and open again: no error, no id twice, and never an empty journal."""
    store = SqliteStore(str(path))
    found = store.load()
    state = restore(found.rest, found.specs, found.jobs, found.sweeps, found.members)
    assert found.jobs
    assert state.jobs
    assert next_id(store) == JOBS + 1 or store.warnings()
    assert next_id(store) > JOBS
    store.find_jobs(JobQuery(limit=1000))
    store.acquire_term()
    store.commit(batch(job(1000), rest=rest(next_id=1001)), sync=True)
    store.close()
    again = SqliteStore(str(path))
    assert 1000 in {each.id for each in again.load().jobs}
    assert again.warnings() == []
    again.close()


@pytest.mark.parametrize("seed", range(20))
def test_damage_of_half_of_all_pages_is_repaired(path: Path, seed: int):
    dice = random.Random(seed)
    pages = path.stat().st_size // 4096
    with path.open("r+b") as file:
        for page in dice.sample(range(pages), pages // 2):
            file.seek(page * 4096 + dice.randrange(4096))
            file.write(dice.randbytes(dice.randrange(1, 64)))
    store = SqliteStore(str(path))
    found = store.load()
    restore(found.rest, found.specs, found.jobs, found.sweeps, found.members)
    assert next_id(store) > JOBS
    store.close()


def test_a_history_with_an_unreadable_row_shows_the_others(path: Path):
    change(
        path,
        "UPDATE jobs SET resident = 0 WHERE id = 3",
        "UPDATE jobs SET data = x'ff' WHERE id = 3",
    )
    store = SqliteStore(str(path))
    found = store.find_jobs(JobQuery(limit=1000))
    assert {each.job.id for each in found} == set(range(1, 21)) - {3}
    assert store.warnings() == [codec.SKIPPED_WARNING]
    store.close()


@pytest.mark.parametrize("found_by", ["a load", "a look at the history", "a commit"])
def test_damage_found_at_run_time_is_repaired_and_the_daemon_continues(path: Path, found_by: str):
    store = SqliteStore(str(path))
    term = store.acquire_term()
    store.commit(batch(job(999)), sync=True)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        table = "events" if found_by == "a commit" else "jobs"
        root = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
        page = root.fetchone()[0] - 1
    with path.open("r+b") as file:
        file.seek(page * 4096)
        file.write(b"\xff" * 64)
    with path.open("rb") as file:  # SQLite caches what it has read before
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    store._db.execute("PRAGMA shrink_memory")
    if found_by == "a commit":
        with pytest.raises(StoreError, match="is damaged"):
            store.commit(batch(job(1000)), sync=True)
    elif found_by == "a look at the history":
        assert store.find_jobs(JobQuery(limit=1000))
    assert {each.id for each in store.load().jobs} >= set(range(23, JOBS + 1))
    assert "the journal was damaged" in store.warnings()[0]
    store.commit(batch(job(1000)), sync=True)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT value FROM meta WHERE key = 'term'").fetchone() == (term,)
    store.close()


def test_a_failed_repair_at_run_time_is_repeated(path: Path, monkeypatch: pytest.MonkeyPatch):
    store = SqliteStore(str(path))
    store.acquire_term()
    change(path, "UPDATE jobs SET data = x'ff' WHERE id = 41")
    with monkeypatch.context() as patch:
        patch.setattr(replacement, "replace", lambda *_: full())
        for _ in range(2):
            with pytest.raises(StoreFull):
                store.load()
    assert {each.id for each in store.load().jobs} >= set(range(23, JOBS + 1))
    store.commit(batch(job(1000)), sync=True)
    store.close()


def test_a_closed_store_is_not_repaired(path: Path):
    store = SqliteStore(str(path))
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.find_jobs(JobQuery())
    assert kept(path) == []
