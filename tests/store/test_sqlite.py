"""Failures of a database in a file, and recovery from them."""

import contextlib
import os
import random
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simulation.sim_fixture import SimFixture
from simulation.simulated_machine import Model
from simulation.state_comparison import fold, replayed, state_as_dict
from stoker.core import events as e
from stoker.core.model.job import Job, Progress
from stoker.core.model.spec import Spec
from stoker.core.state.state import State
from stoker.store import codec
from stoker.store.migrations import SCHEMA
from stoker.store.port import JobQuery, StoreError, StoreFull
from stoker.store.salvage import salvage
from stoker.store.sqlite import RESERVE_BYTES, SqliteStore
from store.rows import batch, done, job, rest, spec, sweep, trial

LAYOUTS = Path(__file__).parent / "layouts"
"""Tables of earlier releases."""
HELD = codec.encode(e.JobHeld(at=1.0, job=1))

Open = Callable[[Path], SqliteStore]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def opened() -> Iterator[Callable[[Path], SqliteStore]]:
    stores: list[SqliteStore] = []

    def open_(path: Path) -> SqliteStore:
        stores.append(SqliteStore(str(path)))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


def crash_copy(path: Path, where: Path) -> Path:
    """Copy the files of an open store, as a crash would leave them."""
    where.mkdir(exist_ok=True)
    for each in path.parent.glob(path.name + "*"):
        if each.is_file() and not each.name.endswith("-shm"):
            shutil.copy(each, where / each.name)
    return where / path.name


def ids(store: SqliteStore) -> list[int]:
    return [each.id for each in store.load().jobs]


# -- basics -------------------------------------------------------------------------------


def test_its_files_are_private_to_the_owner(path: Path, opened):
    os.umask(os.umask(0))  # with any umask
    store = opened(path)
    store.acquire_term()
    store.commit(batch(job(1), secrets={"e": b"TOKEN=1"}), sync=True)
    store.backup(str(path) + ".copy")
    for each in path.parent.iterdir():
        assert stat.S_IMODE(each.stat().st_mode) & 0o077 == 0, each


def test_opening_a_file_leaves_the_umask_unchanged(path: Path, opened):
    before = os.umask(0o027)
    try:
        opened(path)
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


def of_layout_2(path: Path, *jobs: Job, **specs: Spec) -> None:
    """Create a file of an earlier release, with unloaded finished jobs."""
    with sqlite3.connect(path) as db:
        db.executescript((LAYOUTS / "sqlite-2.sql").read_text())
        db.execute("PRAGMA user_version = 2")
        for hash, each in specs.items():
            row = (hash, codec.encode(each), each.queue, each.client)
            db.execute("INSERT INTO specs VALUES (?, ?, ?, ?)", row)
        for each in jobs:
            values = (
                each.id, each.name, each.user, each.state.value, each.submitted_at,
                each.started_at, each.ended_at, each.code, int(not each.finished), each.spec,
                codec.encode(each),
            )  # fmt: skip
            db.execute(f"INSERT INTO jobs VALUES ({', '.join('?' * 11)})", values)
        db.execute("INSERT INTO events VALUES (1, 1.0, 'JobHeld', 1, ?)", (HELD,))
        db.execute("INSERT INTO meta VALUES ('rest', ?)", (codec.encode(rest(next_id=9)),))
    db.close()


def shape(path: Path) -> list[tuple[object, ...]]:
    """Return the columns and indexes of every table."""
    db = sqlite3.connect(path)
    names = db.execute("SELECT type, name FROM sqlite_master ORDER BY name").fetchall()
    found = [(name, *db.execute(f"PRAGMA {kind}_info({name})").fetchall()) for kind, name in names]
    found += db.execute("PRAGMA user_version").fetchall()
    db.close()
    return found


def test_a_file_of_layout_1_is_migrated_with_all_rows(path: Path, opened: Open):
    specs = {"s1": spec(queue="night", client="auto"), "s2": spec()}
    of_layout_2(path, done(1, 20.0), done(2, 21.0, spec="s2"), **specs)
    with sqlite3.connect(path) as db:
        for column in ("queue", "door"):
            db.execute(f"ALTER TABLE specs DROP COLUMN {column}")
        db.execute("PRAGMA user_version = 1")
    db.close()
    store = opened(path)
    assert [each.job.id for each in store.find_jobs(JobQuery(queue="night"))] == [1]
    assert [each.job.id for each in store.find_jobs(JobQuery(queue="default"))] == [2]
    assert [each.job.id for each in store.find_jobs(JobQuery(door="auto"))] == [1]


def test_a_file_of_layout_2_is_migrated_with_all_rows(path: Path, tmp_path: Path, opened: Open):
    misleading = Progress(metrics={"array": 3.0})
    jobs = [
        done(1, 20.0, array=1, index=0), job(2, array=1, index=1, name='a\0"array":7'),
        job(3, progress=misleading), done(4, 21.0), job(5, array=5, index=0),
    ]  # fmt: skip
    of_layout_2(path, *jobs, s1=spec())
    store = opened(path)
    assert store.warnings() == []
    found = store.load()
    assert (found.jobs, found.specs) == ([jobs[1], jobs[2], jobs[4]], {"s1": spec()})
    assert (found.rest, found.sweeps, found.members) == (rest(next_id=9), [], [])
    assert [store.members(array) for array in (1, 3, 5, 7)] == [[1, 2], [], [5], []]
    assert [each.job for each in store.find_jobs(JobQuery(array=1))] == jobs[:2]
    store.acquire_term()
    store.commit(batch(trial(9, 10, 0), sweeps=[sweep(9)]), sync=True)
    again = opened(path)
    assert (again.load().sweeps, again.members(9)) == ([sweep(9)], [10])
    opened(tmp_path / "new.db")
    assert shape(path) == shape(tmp_path / "new.db")


def test_an_unreadable_row_does_not_prevent_a_migration(path: Path, opened: Open):
    of_layout_2(path, job(1), job(2), s1=spec())
    with sqlite3.connect(path) as db:
        db.execute("""UPDATE jobs SET data = '{"array":' WHERE id = 2""")
    db.close()
    store = opened(path)
    assert ids(store) == [1]
    assert "the journal was damaged" in store.warnings()[0]


def test_a_newer_layout_is_refused_politely_and_left_alone(path: Path):
    SqliteStore(str(path)).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="was written by a newer stoker"):
        SqliteStore(str(path))
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_opened_is_reported(tmp_path: Path):
    with pytest.raises(StoreError):
        SqliteStore(str(tmp_path / "not there" / "journal.db"))


def test_a_backup_opens_as_a_store(path: Path, opened):
    store = opened(path)
    store.acquire_term()
    rows = {"rest": rest(next_id=5), "sweeps": [sweep(3)], "dropped": [4]}
    store.commit(batch(job(1), job(2), trial(3, 4, 0), **rows), sync=True)
    store.backup(str(path) + ".copy")
    copy = opened(Path(str(path) + ".copy"))
    assert (ids(copy), copy.load().rest.next_id) == ([1, 2], 5)
    assert (copy.load().sweeps, copy.load().members) == ([sweep(3)], [trial(3, 4, 0)])
    assert copy.members(3) == [4]


def test_a_backup_overwrites_nothing(path: Path, opened):
    store = opened(path)
    target = path.parent / "precious"
    target.write_text("mine")
    with pytest.raises(StoreError, match="Cannot write"):
        store.backup(str(target))
    assert target.read_text() == "mine"


def test_it_can_be_read_by_hand_while_it_is_open(path: Path, opened):
    store = opened(path)
    store.acquire_term()
    store.commit(batch(job(7)), sync=False)
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        assert db.execute("SELECT id, state FROM jobs").fetchall() == [(7, "PENDING")]
    db.close()


# -- truncated logs -----------------------------------------------------------------------


def test_a_torn_log_opens_with_the_commits_before_the_tear(path: Path, tmp_path: Path, opened):
    store = opened(path)
    store.acquire_term()
    for n in range(1, 21):
        store.commit(batch(job(n), rest=rest(next_id=n + 1)), sync=n % 3 == 0)
    size = os.path.getsize(f"{path}-wal")
    dice = random.Random(1)
    lengths = set()
    for n in range(25):
        copy = crash_copy(path, tmp_path / f"torn-{n}")
        os.truncate(f"{copy}-wal", dice.randrange(size + 1))
        torn = SqliteStore(str(copy))
        found = torn.load()
        last = len(found.jobs)
        assert [each.id for each in found.jobs] == list(range(1, last + 1))
        assert [seq for seq, _ in torn.events(0, 99)] == list(range(1, last + 1))
        assert found.rest.next_id == last + 1
        missing = any("missing" in each for each in torn.warnings())
        assert missing == (last < 18)
        torn.acquire_term()
        torn.commit(batch(job(99)), sync=True)
        assert ids(torn) == [*range(1, last + 1), 99]
        torn.close()
        lengths.add(last)
    assert len(lengths) > 5


def test_a_log_with_garbage_at_its_end_opens(path: Path, tmp_path: Path, opened):
    store = opened(path)
    store.acquire_term()
    for n in range(1, 6):
        store.commit(batch(job(n)), sync=True)
    copy = crash_copy(path, tmp_path / "copy")
    with open(f"{copy}-wal", "r+b") as log:
        log.seek(-3000, os.SEEK_END)
        log.write(random.Random(2).randbytes(3000))
    torn = opened(copy)
    assert ids(torn) == [1, 2, 3, 4]
    assert "event 4, but event 5 had been synced" in torn.warnings()[0]


def test_numbers_are_never_reused(path: Path, tmp_path: Path, opened):
    store = opened(path)
    store.acquire_term()
    for n in range(1, 6):
        store.commit(batch(job(n)), sync=True)
    copy = crash_copy(path, tmp_path / "copy")
    os.truncate(f"{copy}-wal", os.path.getsize(f"{copy}-wal") - 100)
    torn = opened(copy)
    torn.acquire_term()
    assert torn.commit(batch(job(9)), sync=True) == 6


# -- damage -------------------------------------------------------------------------------


def lived(path: Path) -> tuple[dict[str, object], int]:
    """Create a database with a history; return its state and its size."""
    opened: list[SqliteStore] = []

    def open_store() -> SqliteStore:
        opened.append(SqliteStore(str(path)))
        return opened[-1]

    box = SimFixture(gpus=2, open_store=open_store)
    box.submit(models=(Model(seconds=5),), count=60)
    box.submit(held=True, count=40)
    box.run(100)
    found = state_as_dict(box.state)
    opened[-1].close()
    return found, path.stat().st_size


def damaged_copies(path: Path, tmp_path: Path, size: int, filler: str) -> Iterator[Path]:
    dice = random.Random(3)
    page = 4096
    for n, start in enumerate(range(0, size, page * max(size // page // 12, 1))):
        copy = crash_copy(path, tmp_path / f"{filler}-{n}")
        length = dice.randrange(200, 2 * page)
        with open(copy, "r+b") as file:
            file.seek(start)
            file.write(bytes(length) if filler == "zeros" else dice.randbytes(length))
            file.truncate(size)
        yield copy


@pytest.mark.parametrize("filler", ["zeros", "garbage"])
def test_damage_anywhere_is_repaired_with_a_message_and_the_file_is_kept(
    path: Path, tmp_path: Path, filler: str
):
    before, size = lived(path)
    salvaged = 0
    for copy in damaged_copies(path, tmp_path, size, filler):
        store = SqliteStore(str(copy))
        found = store.load()
        warnings = store.warnings()
        by_id = {each.id: each for each in found.jobs}
        kept = set(by_id)
        if not warnings:
            # The damage hit irrelevant bytes: free space, or the text of an old event.
            assert kept == set(before["jobs"])  # type: ignore[call-overload]
        else:
            salvaged += 1
            message = warnings[0]
            assert "the journal was damaged" in message
            assert list(copy.parent.glob("*.damaged-*"))
            if "lost" not in message:
                assert kept == set(before["jobs"])  # type: ignore[call-overload]
            else:
                assert len(kept) < 100
        for id in kept:
            was = before["jobs"][id]  # type: ignore[index]
            now = by_id[id]
            assert now.state.value == was.get("state", "PENDING") or now.held, (id, was, now)
        assert found.rest.next_id == 101 or "lost" in str(warnings)
        store.acquire_term()
        store.commit(batch(job(200)), sync=True)
        store.close()
        again = SqliteStore(str(copy))
        assert again.warnings() == []
        assert 200 in ids(again)
        again.close()
    assert salvaged > 3


def test_a_database_without_its_first_page_loses_nothing(path: Path):
    before, _ = lived(path)
    with open(path, "r+b") as file:
        file.write(bytes(4096))
    store = SqliteStore(str(path))
    assert "the journal was damaged" in store.warnings()[0]
    assert set(ids(store)) == set(before["jobs"])  # type: ignore[call-overload]
    assert state_as_dict(replayed(store)) == before
    store.close()


def swept(path: Path) -> State:
    """Create a file with a sweep and an unloaded finished trial."""
    points = tuple((f'{{"lr":{n}}}', f"train {n}") for n in range(4))
    facts = [
        e.SpecRecorded(at=1.0, hash="s1", spec=spec()),
        e.SweepDefined(at=1.0, sweep=sweep(1, total=4)),
        e.JobsSubmitted(at=1.0, first=2, count=4, spec="s1", sweep=1, trials=points),
        e.JobCancelled(at=2.0, job=3),
    ]
    state = fold(facts)
    store = SqliteStore(str(path))
    store.acquire_term()
    rows = {
        "events": facts, "rest": state.record, "specs": state.specs,
        "sweeps": list(state.sweeps.values()),
    }  # fmt: skip
    store.commit(batch(*state.jobs.values(), **rows), sync=True)
    forgotten = e.JobsUnloaded(at=3.0, jobs=(3,))
    store.commit(batch(events=[forgotten], dropped=[3]), sync=True)
    store.close()
    return state


def change(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as db:
        for each in statements:
            db.execute(each)
    db.close()


def without_first_page(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(bytes(4096))


@pytest.mark.parametrize(
    "harm",
    [
        without_first_page,
        lambda path: change(path, "UPDATE sweeps SET data = '{'"),
        lambda path: change(path, "UPDATE jobs SET data = '{' WHERE id = 2"),
        lambda path: change(
            path, "UPDATE jobs SET data = '{' WHERE id = 2", "UPDATE sweeps SET data = '{'"
        ),
    ],
    ids=["first page", "sweep", "trial", "both"],
)
@pytest.mark.parametrize("begun_in", [2, SCHEMA])
def test_sweeps_survive_damage(
    path: Path, opened: Open, begun_in: int, harm: Callable[[Path], None]
):
    if begun_in == 2:
        of_layout_2(path)
        change(path, "DELETE FROM events", "DELETE FROM meta WHERE key = 'rest'")
    state = swept(path)
    harm(path)
    store = opened(path)
    found = store.load()
    [warning] = store.warnings()
    assert "the journal was damaged" in warning
    assert "lost" not in warning
    assert found.sweeps == list(state.sweeps.values())
    assert found.sweeps[0].counts == {"waiting": 3, "cancelled": 1}
    assert [each.id for each in found.members] == [3]
    assert store.members(1) == [2, 3, 4, 5]
    assert found.rest.next_id == 6


def test_a_sweep_with_lost_events_is_restored_from_its_row(path: Path, opened: Open):
    state = swept(path)
    change(path, "UPDATE events SET data = '{' WHERE seq = 2")
    salvage(str(path), ValueError("test"))
    found = opened(path).load()
    assert found.sweeps == list(state.sweeps.values())


def test_a_sweep_that_lost_trials_counts_the_remaining_ones(path: Path, opened: Open):
    swept(path)
    change(
        path, "UPDATE events SET data = '{' WHERE seq = 3", "DELETE FROM jobs WHERE id IN (2, 4, 5)"
    )
    assert "3 jobs (2 to 5) are lost" in salvage(str(path), ValueError("test"))
    [found] = opened(path).load().sweeps
    assert (found.counts, found.issued, found.ended_at) == ({"cancelled": 1}, 4, 2.0)


def test_an_invalid_file_is_renamed_and_a_new_one_created(path: Path):
    path.write_bytes(random.Random(4).randbytes(50_000))
    store = SqliteStore(str(path))
    assert "0 events and 0 jobs were recovered" in store.warnings()[0]
    store.acquire_term()
    store.commit(batch(job(1)), sync=True)
    store.close()


def test_two_salvages_in_one_second_keep_both_files(path: Path):
    for _ in range(2):
        path.write_bytes(b"garbage" * 1000)
        salvage(str(path), ValueError("test"))
    kept = [each for each in path.parent.iterdir() if "damaged" in each.name]
    assert len(kept) == 2


# -- a full disk --------------------------------------------------------------------------


def test_the_reserve_is_allocated_and_released_once(path: Path, opened):
    store = opened(path)
    ballast = Path(f"{path}.ballast")
    assert ballast.stat().st_size == RESERVE_BYTES
    assert store.release_reserve() is True
    assert not ballast.exists()
    assert store.release_reserve() is False


FULL = """
    import resource, signal, sys
    from store.rows import batch, job
    from stoker.store.port import StoreFull
    from stoker.store.sqlite import SqliteStore

    store = SqliteStore(sys.argv[1])
    store.acquire_term()
    store.commit(batch(job(1)), sync=True)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = 60_000 + __import__("os").path.getsize(sys.argv[1] + "-wal")
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    committed = 1
    try:
        for n in range(2, 1000):
            store.commit(batch(job(n)), sync=True)
            committed = n
    except StoreFull as full:
        print(committed, [each.id for each in store.load().jobs] == list(range(1, committed + 1)))
        print(full)
"""


def test_a_full_disk_is_reported_and_committed_events_stay(path: Path, opened):
    here = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL), str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(here)},
    )
    assert done.returncode == 0, done.stderr
    committed, whole, *words = done.stdout.split()
    assert whole == "True"
    assert " ".join(words).startswith("The disk with ")
    assert len(ids(opened(path))) == int(committed)


@pytest.fixture
def small_disk(tmp_path: Path, needs: Callable[..., None]) -> Iterator[Path]:
    needs("mount", "umount")
    where = tmp_path / "disk"
    where.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(where)]
    made = subprocess.run(options, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"cannot mount: {made.stderr.strip()}")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=False)


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_on_a_full_disk_the_reserved_space_is_used_for_ends(small_disk: Path):
    store = SqliteStore(str(small_disk / "journal.db"))
    store.acquire_term()
    store.commit(batch(job(1)), sync=True)
    fill(small_disk / "others")

    def go_on() -> None:
        for n in range(2, 100):
            store.commit(batch(job(n)), sync=True)

    with pytest.raises(StoreFull, match="Free some space; nothing was lost"):
        go_on()
    before = ids(store)
    assert store.release_reserve()
    store.commit(batch(job(500, "COMPLETED", ended_at=5.0)), sync=True)
    assert ids(store) == [*before, 500]
    store.close()


def test_rlimits_are_unchanged():
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


# -- a disk that fails --------------------------------------------------------------------


def failing_syncs(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Make the next syncs of a log fail; the kernel would report success for the one after."""
    tries: list[int] = []

    def fdatasync(fd: int) -> None:
        tries.append(fd)
        if len(tries) <= times:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    return tries


def alone(path: Path, where: Path) -> list[int]:
    """Return the jobs in the database without its log."""
    where.mkdir()
    shutil.copy(path, where / path.name)
    store = SqliteStore(str(where / path.name))
    try:
        return ids(store)
    finally:
        store.close()


def test_after_a_failed_sync_the_log_is_not_relied_on(
    path: Path, tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    store = opened(path)
    store.acquire_term()
    store.commit(batch(job(1)), sync=False)
    failing_syncs(monkeypatch, 1)
    with pytest.raises(OSError, match="Input/output"):
        store.sync()
    assert not (tmp_path / "journal.db.watermark").exists()
    store.sync()
    assert alone(path, tmp_path / "copy") == [1]
    assert (tmp_path / "journal.db.watermark").read_text() == "1 1\n"


def test_after_a_failed_sync_no_later_commit_is_acknowledged(
    path: Path, tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    store = opened(path)
    store.acquire_term()
    store.commit(batch(job(1)), sync=False)
    failing_syncs(monkeypatch, 1)
    with pytest.raises(OSError, match="Input/output"):
        store.sync()
    store.commit(batch(job(2)), sync=True)
    assert alone(path, tmp_path / "copy") == [1]
    assert ids(opened(crash_copy(path, tmp_path / "crashed"))) == [1, 2]


def test_a_reader_that_blocks_the_restart_of_the_log_is_waited_for(
    path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    store = opened(path)
    store.acquire_term()
    store.commit(batch(job(1)), sync=False)
    failing_syncs(monkeypatch, 1)
    with pytest.raises(OSError, match="Input/output"):
        store.sync()
    real = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *given, **more: real(*given, **{**more, "timeout": 0})
    )
    reader = real(path)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM jobs").fetchall()
    store.commit(batch(job(2)), sync=False)
    with pytest.raises(StoreError, match="locked by another program"):
        store.sync()
    reader.close()
    store.sync()


def test_the_runs_of_a_name_are_found_by_its_index(path: Path, opened: Open) -> None:
    """With a million other jobs, a scan would block the daemon."""
    store, statements = opened(path), []
    store._db.set_trace_callback(statements.append)
    store.find_jobs(JobQuery(user="ada", name="train", states=["COMPLETED"], limit=50))
    store._db.set_trace_callback(None)
    (select,) = [each for each in statements if each.startswith("SELECT jobs.data")]
    plan = store._db.execute(f"EXPLAIN QUERY PLAN {select}").fetchall()
    assert any("jobs_done_by_name (name=?" in str(row) for row in plan), plan
