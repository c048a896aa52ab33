"""GPU locks between users: what other users hold, and what they cannot do to us."""

import contextlib
import errno
import fcntl
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.executors.linux import gpu_locks as holds
from stoker.executors.linux.gpu_locks import GpuLocks
from stoker.executors.linux.shared_locks import lock_again

A, B = "GPU-a", "GPU-b"
ME = os.getuid()
THEM = ME + 1
KEY = (1, 0)


class TrustingLocks(GpuLocks):
    """Ignores who owns a lock file: tests create all files as one user."""

    @staticmethod
    def _belongs_to(status: os.stat_result, uid: int) -> bool:
        return True


@pytest.fixture
def lock_dir(tmp_path: Path) -> Path:
    """A lock directory as the first daemon on a host creates it."""
    path = tmp_path / "gpus"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.fixture
def pair(lock_dir: Path) -> tuple[GpuLocks, GpuLocks]:
    """The locks of two users on one host."""
    return TrustingLocks(str(lock_dir), ME), TrustingLocks(str(lock_dir), THEM)


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def mine(lock_dir: Path, messages: list[str]) -> GpuLocks:
    """The locks of one user, with all checks."""
    return GpuLocks(str(lock_dir), ME, messages.append)


def lock_exclusively(path: Path) -> int:
    """Lock a file exclusively, as a daemon does for a moment only."""
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def without_blocking(call: Callable[[], Any]) -> Any:
    """Return the result of a call; fail if it blocks."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive(), "it waits"
    return results[0]


# -- two users that respect each other --------------------------------------------------------


def test_a_gpu_that_one_user_has_locked_is_not_given_to_another(
    pair: tuple[GpuLocks, GpuLocks],
) -> None:
    mine, theirs = pair
    assert mine.take(KEY, (A,)) is None
    assert "the stoker of" in (theirs.take(KEY, (A, B)) or "")
    assert theirs.take(KEY, (B,)) is None
    mine.drop(KEY)
    assert theirs.take((2, 0), (A,)) is None
    assert "the stoker of" in (mine.holder(A) or "")


def test_a_rejected_request_locks_nothing(pair: tuple[GpuLocks, GpuLocks]) -> None:
    mine, theirs = pair
    assert mine.take(KEY, (B,)) is None
    assert theirs.take(KEY, (A, B)) is not None
    assert theirs.paths(KEY) == []
    mine.drop(KEY)
    assert mine.take((2, 0), (A, B)) is None


def test_two_daemons_that_take_a_gpu_at_once_never_both_get_it(
    pair: tuple[GpuLocks, GpuLocks], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = pair
    outcome: list[str | None] = []
    read_names = GpuLocks._names

    def meanwhile(self: GpuLocks, directory: int) -> Any:
        """Lock the GPU for the other user between our lock and our check."""
        monkeypatch.setattr(GpuLocks, "_names", read_names)
        outcome.append(theirs.take(KEY, (A,)))
        return read_names(self, directory)

    monkeypatch.setattr(GpuLocks, "_names", meanwhile)
    outcome.append(mine.take(KEY, (A,)))
    assert len(outcome) == 2
    assert outcome.count(None) <= 1


def test_jobs_of_one_user_may_share_a_gpu(pair: tuple[GpuLocks, GpuLocks]) -> None:
    mine, theirs = pair
    assert mine.take(KEY, (A,)) is None
    assert mine.take((2, 0), (A,)) is None
    mine.drop(KEY)
    assert theirs.take(KEY, (A,)) is not None


def test_a_lock_lasts_as_long_as_a_process_that_inherited_it(
    pair: tuple[GpuLocks, GpuLocks],
) -> None:
    mine, theirs = pair
    assert mine.take(KEY, (A,)) is None
    inherited = lock_again(mine.paths(KEY)[0])
    mine.drop(KEY)
    assert theirs.take(KEY, (A,)) is not None
    os.close(inherited)
    assert theirs.take(KEY, (A,)) is None


def test_other_users_can_see_a_lock_with_any_umask(tmp_path: Path) -> None:
    lock_dir = tmp_path / "made"
    old = os.umask(0o077)
    try:
        assert GpuLocks(str(lock_dir)).take(KEY, (A,)) is None
    finally:
        os.umask(old)
    assert stat.S_IMODE(lock_dir.stat().st_mode) == 0o1777
    for path in lock_dir.iterdir():
        assert path.stat().st_mode & 0o044 == 0o044, path


def test_a_check_by_another_daemon_at_the_same_time_is_waited_for(
    mine: GpuLocks, lock_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mine.take(KEY, (A,)) is None
    mine.drop(KEY)
    looking = lock_exclusively(lock_dir / f"{A}.{ME}")
    monkeypatch.setattr(
        "stoker.executors.linux.shared_locks.time.sleep", lambda _: os.close(looking)
    )
    assert mine.take(KEY, (A,)) is None


# -- what another user can put there ----------------------------------------------------------


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def directory(path: Path) -> None:
    path.mkdir()


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        old = os.getcwd()
        os.chdir(path.parent)
        try:
            sock.bind(path.name)
        finally:
            os.chdir(old)


def hard_link(path: Path) -> None:
    other = path.parent.parent / "other"
    other.touch()
    os.link(other, path)


TRICKS = [fifo, link, dangling, directory, unix_socket, hard_link]


@pytest.mark.parametrize("trick", TRICKS)
def test_an_invalid_lock_file_with_our_name_is_not_used_and_reported_once(
    mine: GpuLocks, lock_dir: Path, messages: list[str], trick: Callable[[Path], None]
) -> None:
    path = lock_dir / f"{A}.{ME}"
    trick(path)
    for number in range(3):
        assert without_blocking(lambda number=number: mine.take((number, 0), (A, B))) is None
        assert mine.paths((number, 0)) == [f"{lock_dir}/{B}.{ME}"]
        mine.drop((number, 0))
    assert len(messages) == 1
    assert str(path) in messages[0]
    assert list(mine.problems.values()) == messages
    assert not (lock_dir / "nowhere").exists(), "a link was followed"
    with contextlib.suppress(OSError):
        path.unlink()
    if path.is_dir():
        path.rmdir()
    assert mine.take(KEY, (A,)) is None
    assert mine.paths(KEY) == [str(path)]
    assert mine.problems == {}, "it is over"


@pytest.mark.parametrize("trick", TRICKS)
def test_an_invalid_lock_file_with_the_name_of_another_user_is_ignored(
    mine: GpuLocks, lock_dir: Path, messages: list[str], trick: Callable[[Path], None]
) -> None:
    trick(lock_dir / f"{A}.{THEM}")
    assert without_blocking(lambda: mine.take(KEY, (A,))) is None
    assert without_blocking(lambda: mine.holder(A)) is None
    assert len(messages) == 1


def test_a_lock_with_our_name_that_another_user_owns_is_not_ours(
    lock_dir: Path, messages: list[str]
) -> None:
    (lock_dir / f"{A}.{THEM}").touch()
    theirs = GpuLocks(
        str(lock_dir), THEM, messages.append
    )  # this user owns the file with that name
    assert theirs.take(KEY, (A,)) is None
    assert theirs.paths(KEY) == []
    assert "belongs to" in messages[0]


def test_a_lock_with_the_name_of_a_user_that_does_not_own_it_is_ignored(
    mine: GpuLocks, lock_dir: Path, messages: list[str]
) -> None:
    path = lock_dir / f"{A}.{THEM}"
    path.touch()
    fd = lock_exclusively(path)
    assert without_blocking(lambda: mine.take(KEY, (A,))) is None
    assert mine.holder(A) is None
    assert len(messages) == 1
    os.close(fd)


def test_an_unreadable_file_is_ignored(
    mine: GpuLocks, lock_dir: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = {f"{A}.{ME}", f"{B}.{THEM}"}
    for name in closed:
        (lock_dir / name).touch(mode=0)
    real = os.open

    def opened(path: Any, *more: Any, **names: Any) -> int:
        if path in closed:  # root may read everything
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, *more, **names)

    monkeypatch.setattr(os, "open", opened)
    assert mine.take(KEY, (A, B)) is None
    assert mine.paths(KEY) == [f"{lock_dir}/{B}.{ME}"]
    assert len(messages) == 2


def test_the_common_lock_of_earlier_versions_is_not_waited_for(
    mine: GpuLocks, lock_dir: Path
) -> None:
    (lock_dir / A).touch()
    fd = lock_exclusively(lock_dir / A)
    assert without_blocking(lambda: mine.take(KEY, (A,))) is None
    os.close(fd)


def test_an_exclusive_lock_on_our_file_blocks_only_that_gpu(
    mine: GpuLocks, lock_dir: Path, messages: list[str]
) -> None:
    path = lock_dir / f"{A}.{ME}"
    path.touch()
    fd = lock_exclusively(path)
    for _ in range(3):
        reason = without_blocking(lambda: mine.take(KEY, (A,)))
        assert f"another process has locked {path}" in reason
    assert mine.holder(A) == reason
    assert len(messages) == 1
    assert mine.take(KEY, (B,)) is None
    os.close(fd)


def test_a_lease_on_a_lock_file_is_not_waited_for(mine: GpuLocks, lock_dir: Path) -> None:
    path = lock_dir / f"{A}.{THEM}"
    path.touch()
    fd = os.open(path, os.O_RDWR)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel's request to give it up
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    try:
        assert without_blocking(lambda: mine.take(KEY, (A,))) is None
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, before)


def test_a_directory_with_too_many_files_is_not_read(
    mine: GpuLocks, lock_dir: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "MAX_FILES", 20)
    for number in range(30):
        (lock_dir / f"{A}.{THEM + number}").touch()
    opened: list[Any] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda *a, **k: opened.append(a) or real(*a, **k))
    assert mine.take(KEY, (A,)) is None
    assert mine.paths(KEY) == [f"{lock_dir}/{A}.{ME}"], "others still see ours"
    assert len(opened) < 5
    assert len(messages) == 1
    assert "more than 20 files" in messages[0]


def test_other_file_names_are_ignored(mine: GpuLocks, lock_dir: Path) -> None:
    for name in (f"{A}.", f"{A}.0{THEM}", f"{A}.٣", f"{A}.-1", A, f"{A}.x", f".{THEM}"):
        (lock_dir / name).touch()
    assert mine.take(KEY, (A,)) is None
    assert mine.problems == {}


# -- the directory itself ---------------------------------------------------------------------


def test_our_directory_gets_the_sticky_bit(mine: GpuLocks, lock_dir: Path) -> None:
    lock_dir.chmod(0o777)
    assert mine.take(KEY, (A,)) is None
    assert stat.S_IMODE(lock_dir.stat().st_mode) == 0o1777
    assert mine.paths(KEY)


@pytest.mark.parametrize("kind", ["file", "link", "fifo", "not sticky", "closed"])
def test_a_directory_that_cannot_be_trusted_is_not_used_and_reported_once(
    mine: GpuLocks, lock_dir: Path, messages: list[str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock_dir.rmdir()
    if kind == "file":
        lock_dir.touch()
    elif kind == "link":
        lock_dir.symlink_to(lock_dir.parent)
    elif kind == "fifo":
        os.mkfifo(lock_dir)
    else:
        lock_dir.mkdir()
        lock_dir.chmod(0o777 if kind == "not sticky" else 0o700)
        monkeypatch.setattr(os, "getuid", lambda: THEM)
    before = sorted(os.listdir(lock_dir.parent))
    for _ in range(3):
        assert without_blocking(lambda: mine.take(KEY, (A,))) is None
        assert mine.paths(KEY) == []
        assert without_blocking(lambda: mine.holder(A)) is None
    assert len(messages) == 1
    assert str(lock_dir) in messages[0]
    assert sorted(os.listdir(lock_dir.parent)) == before
    assert lock_dir.is_symlink() or not lock_dir.is_dir() or os.listdir(lock_dir) == []


# -- shortages --------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, code: int) -> Callable[[], None]:
    """Make the creation of files fail; return a function that ends this."""
    real = os.open

    def opened(path: Any, flags: int, *more: Any, **names: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(code, os.strerror(code), path)
        return real(path, flags, *more, **names)

    monkeypatch.setattr(os, "open", opened)
    return lambda: monkeypatch.setattr(os, "open", real)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EIO])
def test_a_shortage_is_reported_once_and_retried_with_growing_pauses(
    mine: GpuLocks, messages: list[str], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    now = 100.0
    monkeypatch.setattr("stoker.executors.linux.gpu_locks.time.monotonic", lambda: now)
    over = failing(monkeypatch, code)
    tried, before = [], None
    assert mine.take(KEY, (A,)) is not None
    for _ in range(1000):
        reason = mine.holder(A)
        assert reason is not None
        assert reason.startswith("unavailable: ")
        assert os.strerror(code) in reason
        assert mine.take(KEY, (A,)) == reason
        if mine._pauses[A] != before:
            tried.append(now)
        before = mine._pauses[A]
        now += 1.0
    assert tried[:4] == [100.0, 110.0, 130.0, 170.0]
    assert len(tried) < 10
    assert len(messages) == 1
    over()
    assert mine.take(KEY, (A,)) is not None, "it is not tried before the pause is over"
    now += holds.LONGEST_PAUSE_SECONDS
    assert mine.holder(A) is None
    assert mine.problems == {}
    assert mine._pauses == {}
    assert mine.take(KEY, (A,)) is None


def test_a_lock_that_can_be_taken_again_ends_the_pauses_of_other_gpus(
    mine: GpuLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("stoker.executors.linux.gpu_locks.time.monotonic", lambda: now)
    over = failing(monkeypatch, errno.ENOSPC)
    mine.take(KEY, (A,))
    now += 9.0
    mine.take(KEY, (B,))
    over()
    now += 1.5
    assert mine.holder(A) is None
    assert mine.holder(B) is None
    assert mine.problems == {}


def test_jobs_get_gpus_on_a_read_only_disk(
    mine: GpuLocks, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, errno.EROFS)
    assert mine.take(KEY, (A,)) is None
    assert mine.paths(KEY) == []
    assert len(messages) == 1


# -- a system daemon and private ones -----------------------------------------------------------


@pytest.fixture
def kinds(lock_dir: Path, tmp_path: Path) -> tuple[GpuLocks, GpuLocks]:
    """The locks of a system daemon and of a user's own daemon."""
    system = tmp_path / "system"
    system.mkdir(mode=0o755)
    return (
        TrustingLocks(str(system), THEM, is_system=True, other=str(lock_dir)),
        TrustingLocks(str(lock_dir), ME, other=str(system)),
    )


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["system first", "own first"])
def test_the_two_kinds_of_daemons_leave_each_others_gpus_alone(
    kinds: tuple[GpuLocks, GpuLocks], order: tuple[int, int]
) -> None:
    first, second = (kinds[i] for i in order)
    assert first.take(KEY, (A,)) is None
    assert "the stoker of" in (second.take(KEY, (A, B)) or "")
    assert "the stoker of" in (second.holder(A) or "")
    assert second.holder(B) is None
    assert second.take(KEY, (B,)) is None
    first.drop(KEY)
    assert second.take((2, 0), (A,)) is None


def test_the_directory_of_a_system_daemon_is_never_created_or_opened_to_others(
    tmp_path: Path, lock_dir: Path
) -> None:
    system = tmp_path / "system"
    own = GpuLocks(str(lock_dir), ME, other=str(system))
    assert own.take(KEY, (A,)) is None
    assert not system.exists()
    system.mkdir(mode=0o755)
    assert GpuLocks(str(system), ME, is_system=True).take(KEY, (A,)) is None
    assert stat.S_IMODE(system.stat().st_mode) == 0o755


def test_a_system_directory_that_others_can_write_to_is_ignored(
    tmp_path: Path, lock_dir: Path, messages: list[str]
) -> None:
    system = tmp_path / "system"
    system.mkdir()
    system.chmod(0o777)
    own = GpuLocks(str(lock_dir), ME, messages.append, other=str(system))
    assert own.take(KEY, (A,)) is None
    assert "1777" in messages[0]
    assert list(own.problems) == [str(system)]
