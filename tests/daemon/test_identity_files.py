"""What a daemon without its earlier state directory gets from the database server."""

from pathlib import Path

import pytest

from stoker.daemon.identity_files import restore_files, save_files
from stoker.store.port import Batch
from stoker.store.sqlite import SqliteStore


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    made = SqliteStore(str(tmp_path / "journal.db"))
    made.acquire_term()
    made.load()
    return made


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir()
    (path / "install").write_text("abcdef01")
    (path / "token").write_text("first")
    (path / "other").write_text("not kept")
    return path


def contents(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir()}


def test_a_new_state_directory_gets_the_files(
    store: SqliteStore, state: Path, tmp_path: Path
) -> None:
    save_files(store, str(state), ())
    new = tmp_path / "new"
    new.mkdir()
    restore_files(store, str(new))
    assert contents(new) == {"install": "abcdef01", "token": "first"}
    assert (new / "token").stat().st_mode & 0o777 == 0o600


def test_the_files_of_another_state_stay(store: SqliteStore, state: Path, tmp_path: Path) -> None:
    save_files(store, str(state), ())
    other = tmp_path / "other"
    other.mkdir()
    (other / "install").write_text("own")
    restore_files(store, str(other))
    assert contents(other) == {"install": "own"}


def test_a_replaced_token_replaces_the_stored_one(
    store: SqliteStore, state: Path, tmp_path: Path
) -> None:
    save_files(store, str(state), ())
    store.commit(Batch(secrets={"used": b"A=1"}), sync=True)
    (state / "token").write_text("second")
    save_files(store, str(state), ["used"])
    assert store.secret("file/token") == b"second"
    assert store.secret("file/install") == b"abcdef01"
    assert store.secret("used") == b"A=1"
