"""A journal deleted while it is open: nothing more counts as synced, and nothing is lost."""

import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stoker import places
from stoker.store.port import StoreError
from stoker.store.sqlite import SqliteStore
from store.rows import batch, job, rest

Open = Callable[[], SqliteStore]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal in its own home, and another directory for copies."""
    monkeypatch.setattr(places, "_short_dir", lambda: str(tmp_path / "elsewhere"))
    home = tmp_path / "home" / "state"
    home.mkdir(parents=True, mode=0o700)
    return home / "journal.db"


@pytest.fixture
def opened(path: Path) -> Iterator[Open]:
    stores: list[SqliteStore] = []

    def open_() -> SqliteStore:
        stores.append(SqliteStore(str(path)))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


def ids(store: SqliteStore) -> list[int]:
    return [each.id for each in store.load().jobs]


def delete_journal(path: Path) -> None:
    path.unlink()


def delete_all_files(path: Path) -> None:
    for each in path.parent.iterdir():
        each.unlink()


def delete_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def delete_home(path: Path) -> None:
    shutil.rmtree(path.parent.parent)


def move_home(path: Path) -> None:
    path.parent.parent.rename(path.parent.parent.with_name("moved"))


def replace_journal(path: Path) -> None:
    path.rename(path.with_name("old"))
    shutil.copy(path.with_name("old"), path)


DELETIONS = [delete_journal, delete_all_files, delete_log, delete_home, move_home]


@pytest.mark.parametrize("delete", DELETIONS)
def test_a_deleted_journal_is_lost_until_a_copy_replaces_it(
    path: Path, opened: Open, delete: Callable[[Path], None]
):
    store = opened()
    store.acquire_term()
    store.commit(batch(job(1), rest=rest(next_id=2)), sync=True)
    assert store.durability_warning() is None
    delete(path)
    said = str(store.durability_warning())
    assert said.startswith(f"{path} was deleted or moved while the daemon runs")
    assert f"{path}.emergency" in said
    store.commit(batch(job(2, "COMPLETED", ended_at=5.0), rest=rest(next_id=3)), sync=False)
    store.sync()
    copy = Path(f"{path}.emergency")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    # The process is killed: open files are not closed, and their shared memory is lost.
    crashed = path.parent.with_name("crashed")
    shutil.copytree(path.parent, crashed, ignore=shutil.ignore_patterns("*-shm"))
    with closing(SqliteStore(str(crashed / path.name))) as again:
        assert ids(again) == [1, 2]
        assert again.id_floor() == 3
        assert "was restored from its emergency copy" in again.warnings()[0]
        assert again.lost_events() == 0
        assert again.durability_warning() is None
    assert not (crashed / copy.name).exists()


def test_events_after_a_copy_are_in_the_next_copy(path: Path, opened: Open):
    store = opened()
    store.acquire_term()
    delete_home(path)
    for number in range(1, 4):
        store.commit(batch(job(number)), sync=False)
        store.sync()
    assert ids(opened()) == [1, 2, 3]


def test_a_copy_is_not_written_again_without_need(path: Path, opened: Open):
    store = opened()
    store.acquire_term()
    store.commit(batch(job(1)), sync=True)
    delete_journal(path)
    store.sync()
    copy = Path(f"{path}.emergency")
    before = copy.stat().st_ino
    store.sync()
    assert copy.stat().st_ino == before
    copy.unlink()
    store.sync()
    assert copy.exists()


def test_if_the_home_cannot_be_created_the_copy_is_kept_elsewhere(
    path: Path, opened: Open, tmp_path: Path
):
    store = opened()
    store.acquire_term()
    store.commit(batch(job(1)), sync=True)
    home = path.parent.parent
    delete_home(path)
    home.write_text("in the way")
    store.sync()
    [copy] = (tmp_path / "elsewhere").iterdir()
    assert str(copy) in str(store.durability_warning())
    home.unlink()
    path.parent.mkdir(parents=True)
    assert ids(opened()) == [1]
    assert not copy.exists()


def test_if_no_copy_can_be_written_nothing_counts_as_synced(
    path: Path, opened: Open, tmp_path: Path
):
    store = opened()
    store.acquire_term()
    store.commit(batch(job(1)), sync=True)
    delete_home(path)
    path.parent.parent.write_text("in the way")
    (tmp_path / "elsewhere").write_text("in the way")
    with pytest.raises(StoreError, match="no copy can be written"):
        store.sync()
    path.parent.parent.unlink()
    store.sync()
    assert Path(f"{path}.emergency").exists()


def test_a_journal_that_is_moved_back_is_used_again(path: Path, opened: Open):
    store = opened()
    store.acquire_term()
    store.commit(batch(job(1)), sync=True)
    move_home(path)
    assert store.durability_warning()
    path.parent.parent.with_name("moved").rename(path.parent.parent)
    assert store.durability_warning() is None
    store.commit(batch(job(2)), sync=True)
    store.sync()
    assert not Path(f"{path}.emergency").exists()


def test_an_older_copy_does_not_replace_a_newer_journal(path: Path, opened: Open):
    store = opened()
    store.acquire_term()
    store.commit(batch(job(1)), sync=True)
    store.backup(f"{path}.emergency")
    store.commit(batch(job(2)), sync=True)
    assert ids(opened()) == [1, 2]


def test_a_journal_that_is_replaced_by_another_file_is_lost(path: Path, opened: Open):
    store = opened()
    store.acquire_term()
    store.commit(batch(job(1)), sync=True)
    replace_journal(path)
    assert store.durability_warning()
    store.commit(batch(job(2)), sync=False)
    store.sync()
    assert ids(opened()) == [1, 2]


def test_a_copy_waits_for_a_commit_under_way(path: Path, opened: Open):
    store = opened()
    store.acquire_term()
    store.commit(batch(job(1)), sync=True)
    delete_home(path)
    copying = threading.Thread(target=store.sync)
    with store._transaction():
        store._db.execute("DELETE FROM jobs")
        copying.start()
        copying.join(0.1)
        assert copying.is_alive()
        assert not path.parent.exists() or not list(path.parent.glob("*.emergency"))
    copying.join(10)
    assert Path(f"{path}.emergency").exists()
