"""Deleted files and directories of a running daemon, step by step."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from memory_store import MemoryStore
from stoker.daemon import state_lock as lock
from stoker.daemon.http.server import HttpServer
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.daemon.state_files import CHECK_SECONDS, REMEMBERED, StateFiles
from stoker.daemon.state_lock import Locked, StateLock
from stoker.executors.linux.report_watcher import ReportWatcher
from stoker.store.port import Store, StoreFenced


class Socket:
    """The server's socket file, without a server."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.loading = 0
        path.touch()

    @property
    def is_in_place(self) -> bool:
        return os.path.exists(self.path)

    def listen_again(self) -> bool:
        self.loading -= 1
        if self.loading < 0:
            Path(self.path).touch()
        return self.loading < 0


class Journal(MemoryStore):
    """A store that a test declares lost."""

    def __init__(self) -> None:
        super().__init__()
        self.loss: str | None = None
        self.syncs = 0

    def durability_warning(self) -> str | None:
        return self.loss

    def sync(self) -> None:
        self.syncs += 1


class Fixture:
    """A complete state directory."""

    def __init__(self, home: Path) -> None:
        self.state, self.run = home / "state", home / "run"
        for path in (self.state, self.run, self.state / "logs"):
            path.mkdir(mode=0o700, parents=True)
        for name in REMEMBERED:
            (self.state / name).write_text(name)
        (self.state / "token").write_text("secret")
        self.socket, self.store, self.clock = Socket(home / "sock"), Journal(), 0.0
        self.reactor = EpollReactor(clock=lambda: self.clock)
        self.lock = StateLock(str(self.state))
        self.requested = 0
        self.files = StateFiles(
            str(self.state), [str(self.run)], self.lock,
            cast("HttpServer", self.socket), cast("Store", self.store), self.reactor, self._request,
            lambda: None,
        )  # fmt: skip

    def _request(self) -> None:
        self.requested += 1

    def wait_for_check(self, times: int = 1) -> None:
        """Run the next checks now."""
        for _ in range(times):
            self.clock += CHECK_SECONDS
            self.reactor.wait(0.0)


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[Fixture]:
    made = Fixture(tmp_path)
    yield made
    made.files.close()


@pytest.mark.parametrize("name", ["state/logs", "run", "state/lock", "sock", "state"])
def test_a_deleted_file_is_created_again(fixture: Fixture, tmp_path: Path, name: str):
    path = tmp_path / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    fixture.wait_for_check()
    assert path.exists()
    assert fixture.lock.is_in_place


def test_a_renamed_file_is_created_again(fixture: Fixture, tmp_path: Path):
    fixture.state.rename(tmp_path / "moved")
    fixture.wait_for_check()
    assert (fixture.state / "logs").is_dir()
    assert fixture.lock.is_in_place


def test_files_that_the_next_daemon_needs_are_written_again(fixture: Fixture):
    shutil.rmtree(fixture.state)
    fixture.wait_for_check()
    for name in REMEMBERED:
        assert (fixture.state / name).read_text() == name
        assert (fixture.state / name).stat().st_mode & 0o777 == 0o600
    assert not (fixture.state / "token").exists()  # a user who deletes it wants another


def test_a_deleted_socket_is_created_again_once_http_is_loaded(fixture: Fixture):
    fixture.socket.loading = 2
    Path(fixture.socket.path).unlink()
    fixture.wait_for_check(3)
    assert fixture.socket.is_in_place


def test_a_lost_journal_is_copied(fixture: Fixture):
    fixture.store.loss = "it was deleted"
    (fixture.state / "logs").rmdir()
    fixture.wait_for_check()
    assert fixture.requested == 1


def test_a_daemon_that_lost_its_lock_stops_and_leaves_a_copy(fixture: Fixture):
    (fixture.state / "lock").unlink()
    other = StateLock(str(fixture.state))
    fixture.store.loss = "it was deleted too"
    with pytest.raises(StoreFenced, match=f"Another daemon .pid {os.getpid()}. has taken over"):
        fixture.wait_for_check()
    assert fixture.store.syncs == 1
    other.release()


def test_a_failed_recreation_is_retried(fixture: Fixture, caplog: pytest.LogCaptureFixture):
    fixture.run.rmdir()
    fixture.run.write_text("in the way")
    fixture.wait_for_check(3)
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    fixture.run.unlink()
    fixture.wait_for_check()
    assert fixture.run.is_dir()


# -- the lock -----------------------------------------------------------------------------


def test_a_lock_file_deleted_during_locking_is_locked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    flock, deleted = lock.fcntl.flock, []

    def delete_first(fd: int, operation: int) -> None:
        if not deleted:
            deleted.append(True)
            (tmp_path / "lock").unlink()
        flock(fd, operation)

    monkeypatch.setattr(lock.fcntl, "flock", delete_first)
    taken = StateLock(str(tmp_path))
    assert taken.is_in_place
    with pytest.raises(Locked):
        StateLock(str(tmp_path))
    taken.release()


def test_a_renewed_lock_excludes_other_daemons(tmp_path: Path):
    taken = StateLock(str(tmp_path))
    (tmp_path / "lock").unlink()
    assert not taken.is_in_place
    taken.renew()
    assert taken.is_in_place
    with pytest.raises(Locked, match=str(os.getpid())):
        StateLock(str(tmp_path))
    taken.release()
    StateLock(str(tmp_path)).release()


# -- training reports ---------------------------------------------------------------------


def test_reports_are_polled_once_their_directory_is_deleted(tmp_path: Path):
    class CountingListener:
        looked = 0

        def on_overflow(self) -> None:
            self.looked += 1

    reactor, listener = EpollReactor(), CountingListener()
    watcher = ReportWatcher(str(tmp_path / "training"), reactor, cast("Any", listener))
    watcher.start()
    assert watcher.seconds_until_poll() is None
    (tmp_path / "training").rmdir()
    reactor.wait(1.0)
    watcher.poll_if_due()
    assert listener.looked == 1
    assert watcher.seconds_until_poll() is not None
