"""What a daemon does about files and directories that are deleted under it, step by step."""

import os
import select
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from memory_store import MemoryStore
from stoker.daemon import state_files
from stoker.daemon import state_lock as lock
from stoker.daemon.http.server import HttpServer
from stoker.daemon.reports.watcher import ReportWatcher
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.daemon.state_files import LOOK_SECONDS, REMEMBERED, StateFiles
from stoker.daemon.state_lock import Locked, StateLock
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
    """A store that a test calls lost."""

    def __init__(self) -> None:
        super().__init__()
        self.said: str | None = None
        self.syncs = 0

    def durability_warning(self) -> str | None:
        return self.said

    def sync(self) -> None:
        self.syncs += 1


class Fixture:
    """A state directory in which everything is as it should be."""

    def __init__(self, home: Path) -> None:
        self.state, self.run = home / "state", home / "run"
        for path in (self.state, self.run, self.state / "logs"):
            path.mkdir(mode=0o700, parents=True)
        for name in REMEMBERED:
            (self.state / name).write_text(name)
        (self.state / "token").write_text("secret")
        self.socket, self.store, self.poller = Socket(home / "sock"), Journal(), EpollReactor()
        self.lock = StateLock(str(self.state))
        self.requested = 0
        self.files = StateFiles(
            str(self.state), [str(self.run)], str(self.state / "journal.db"), self.lock,
            cast("HttpServer", self.socket), cast("Store", self.store), self.poller, self._request,
            lambda: None,
        )  # fmt: skip
        self.files.check_if_due()

    def _request(self) -> None:
        self.requested += 1

    def settle(self) -> None:
        """Let the files be looked at, as the loop does."""
        for _ in range(200):
            self.poller.wait(0.0)
            left = self.files.seconds_left()
            if left is None:
                return
            select.select([], [], [], left)
            self.files.check_if_due()
        pytest.fail("it does not come to rest")


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[Fixture]:
    made = Fixture(tmp_path)
    yield made
    made.files.close()


def test_while_nothing_is_deleted_there_is_nothing_to_do(fixture: Fixture):
    fixture.poller.wait(0.0)
    assert fixture.files.seconds_left() is None
    (fixture.state / "logs" / "1.out").touch()
    (fixture.state / "logs" / "1.out").unlink()
    fixture.poller.wait(0.0)
    assert fixture.files.seconds_left() is None


@pytest.mark.parametrize("name", ["state/logs", "run", "state/lock", "sock", "state"])
def test_what_is_deleted_is_made_again(fixture: Fixture, tmp_path: Path, name: str):
    path = tmp_path / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    fixture.settle()
    assert path.exists()
    assert fixture.lock.is_in_place


def test_what_is_moved_away_is_made_again_too(fixture: Fixture, tmp_path: Path):
    fixture.state.rename(tmp_path / "moved")
    fixture.settle()
    assert (fixture.state / "logs").is_dir()
    assert fixture.lock.is_in_place


def test_files_without_which_the_next_daemon_would_not_go_on_are_written_again(fixture: Fixture):
    shutil.rmtree(fixture.state)
    fixture.settle()
    for name in REMEMBERED:
        assert (fixture.state / name).read_text() == name
        assert (fixture.state / name).stat().st_mode & 0o777 == 0o600
    assert not (fixture.state / "token").exists()  # who deletes it wants another


def test_a_directory_is_there_before_the_next_job_starts(fixture: Fixture):
    shutil.rmtree(fixture.run)
    fixture.files.ensure_directories()
    assert fixture.run.is_dir()


def test_a_socket_is_made_again_as_soon_as_http_is_loaded(fixture: Fixture):
    fixture.socket.loading = 2
    Path(fixture.socket.path).unlink()
    fixture.settle()
    assert fixture.socket.is_in_place


def test_a_lost_journal_is_copied(fixture: Fixture):
    fixture.store.said = "it was deleted"
    (fixture.state / "logs").rmdir()
    fixture.settle()
    assert fixture.requested == 1


def test_a_daemon_whose_lock_another_one_has_stops_and_leaves_a_copy(fixture: Fixture):
    (fixture.state / "lock").unlink()
    other = StateLock(str(fixture.state))
    fixture.store.said = "it was deleted too"
    with pytest.raises(StoreFenced, match=f"Another daemon .pid {os.getpid()}. has taken over"):
        fixture.settle()
    assert fixture.store.syncs == 1
    other.release()


def test_where_the_kernel_reports_nothing_it_is_looked_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def none_left() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(state_files, "Inotify", none_left)
    fixture = Fixture(tmp_path)
    assert LOOK_SECONDS - 1 < (fixture.files.seconds_left() or 0) <= LOOK_SECONDS
    Path(fixture.socket.path).unlink()
    monkeypatch.setattr(fixture.files, "_due", 0.0)
    fixture.files.check_if_due()
    assert fixture.socket.is_in_place
    fixture.files.close()


def test_what_cannot_be_made_again_is_tried_again(fixture: Fixture):
    fixture.run.rmdir()
    fixture.run.write_text("in the way")
    for _ in range(100):
        fixture.poller.wait(0.05)
        fixture.files.check_if_due()
        if (fixture.files.seconds_left() or 0.0) > 1:
            break
    assert 1 < (fixture.files.seconds_left() or 0) <= LOOK_SECONDS
    fixture.run.unlink()
    fixture.files._due = 0.0
    fixture.files.check_if_due()
    assert fixture.run.is_dir()


# -- the lock -----------------------------------------------------------------------------


def test_a_lock_file_that_is_deleted_while_it_is_taken_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    flock, deleted = lock.fcntl.flock, []

    def delete_first(fd: int, how: int) -> None:
        if not deleted:
            deleted.append(True)
            (tmp_path / "lock").unlink()
        flock(fd, how)

    monkeypatch.setattr(lock.fcntl, "flock", delete_first)
    taken = StateLock(str(tmp_path))
    assert taken.is_in_place
    with pytest.raises(Locked):
        StateLock(str(tmp_path))
    taken.release()


def test_a_renewed_lock_keeps_others_out(tmp_path: Path):
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


def test_reports_are_read_now_and_then_once_their_directory_is_deleted(tmp_path: Path):
    class Looks:
        looked = 0

        def on_overflow(self) -> None:
            self.looked += 1

    poller, listener = EpollReactor(), Looks()
    watcher = ReportWatcher(str(tmp_path / "training"), poller, cast("Any", listener))
    watcher.start()
    assert watcher.seconds_until_poll() is None
    (tmp_path / "training").rmdir()
    poller.wait(1.0)
    watcher.poll_if_due()
    assert listener.looked == 1
    assert watcher.seconds_until_poll() is not None
