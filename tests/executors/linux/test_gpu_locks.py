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


class Trusting(GpuLocks):
    """Takes a file for that of the user in its name: tests make all files as one user."""

    @staticmethod
    def _belongs_to(found: os.stat_result, uid: int) -> bool:
        return True


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory as the first daemon on a machine makes it."""
    path = tmp_path / "gpus"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.fixture
def pair(place: Path) -> tuple[GpuLocks, GpuLocks]:
    """The locks of two users on one machine."""
    return Trusting(str(place), ME), Trusting(str(place), THEM)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def mine(place: Path, said: list[str]) -> GpuLocks:
    """The locks of one user, with all checks."""
    return GpuLocks(str(place), ME, said.append)


def exclusively(path: Path) -> int:
    """Lock a file as no daemon ever does for long."""
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def promptly(what: Callable[[], Any]) -> Any:
    """Return what a call returns; fail if it waits for anything."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(what()), daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive(), "it waits"
    return found[0]


# -- two users that respect each other --------------------------------------------------------


def test_what_one_user_holds_another_does_not_get(pair: tuple[GpuLocks, GpuLocks]) -> None:
    mine, theirs = pair
    assert mine.take(KEY, (A,)) is None
    assert "the stoker of" in (theirs.take(KEY, (A, B)) or "")
    assert theirs.take(KEY, (B,)) is None
    mine.drop(KEY)
    assert theirs.take((2, 0), (A,)) is None
    assert "the stoker of" in (mine.holder(A) or "")


def test_a_refusal_holds_nothing(pair: tuple[GpuLocks, GpuLocks]) -> None:
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
    look = GpuLocks._names

    def meanwhile(self: GpuLocks, directory: int) -> Any:
        """The other daemon takes the GPU between our lock and our look."""
        monkeypatch.setattr(GpuLocks, "_names", look)
        outcome.append(theirs.take(KEY, (A,)))
        return look(self, directory)

    monkeypatch.setattr(GpuLocks, "_names", meanwhile)
    outcome.append(mine.take(KEY, (A,)))
    assert len(outcome) == 2
    assert outcome.count(None) <= 1


def test_one_users_jobs_may_share_a_gpu(pair: tuple[GpuLocks, GpuLocks]) -> None:
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


def test_others_can_see_a_lock_whatever_the_umask_is(tmp_path: Path) -> None:
    place = tmp_path / "made"
    old = os.umask(0o077)
    try:
        assert GpuLocks(str(place)).take(KEY, (A,)) is None
    finally:
        os.umask(old)
    assert stat.S_IMODE(place.stat().st_mode) == 0o1777
    for path in place.iterdir():
        assert path.stat().st_mode & 0o044 == 0o044, path


def test_a_look_of_another_daemon_in_the_same_instant_is_waited_out(
    mine: GpuLocks, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mine.take(KEY, (A,)) is None
    mine.drop(KEY)
    looking = exclusively(place / f"{A}.{ME}")
    monkeypatch.setattr(
        "stoker.executors.linux.shared_locks.time.sleep", lambda _: os.close(looking)
    )
    assert mine.take(KEY, (A,)) is None


# -- what a stranger can put there ------------------------------------------------------------


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
def test_what_is_no_lock_file_under_our_name_is_not_used_and_reported_once(
    mine: GpuLocks, place: Path, said: list[str], trick: Callable[[Path], None]
) -> None:
    path = place / f"{A}.{ME}"
    trick(path)
    for number in range(3):
        assert promptly(lambda number=number: mine.take((number, 0), (A, B))) is None
        assert mine.paths((number, 0)) == [f"{place}/{B}.{ME}"]
        mine.drop((number, 0))
    assert len(said) == 1
    assert str(path) in said[0]
    assert list(mine.problems.values()) == said
    assert not (place / "nowhere").exists(), "a link was followed"
    with contextlib.suppress(OSError):
        path.unlink()
    if path.is_dir():
        path.rmdir()
    assert mine.take(KEY, (A,)) is None
    assert mine.paths(KEY) == [str(path)]
    assert mine.problems == {}, "it is over"


@pytest.mark.parametrize("trick", TRICKS)
def test_what_is_no_lock_file_under_the_name_of_another_user_is_ignored(
    mine: GpuLocks, place: Path, said: list[str], trick: Callable[[Path], None]
) -> None:
    trick(place / f"{A}.{THEM}")
    assert promptly(lambda: mine.take(KEY, (A,))) is None
    assert promptly(lambda: mine.holder(A)) is None
    assert len(said) == 1


def test_a_lock_under_our_name_that_another_user_owns_is_not_ours(
    place: Path, said: list[str]
) -> None:
    (place / f"{A}.{THEM}").touch()
    theirs = GpuLocks(str(place), THEM, said.append)  # the file under this name is ours
    assert theirs.take(KEY, (A,)) is None
    assert theirs.paths(KEY) == []
    assert "belongs to" in said[0]


def test_a_lock_under_a_name_that_its_owner_does_not_have_means_nothing(
    mine: GpuLocks, place: Path, said: list[str]
) -> None:
    path = place / f"{A}.{THEM}"
    path.touch()
    fd = exclusively(path)
    assert promptly(lambda: mine.take(KEY, (A,))) is None
    assert mine.holder(A) is None
    assert len(said) == 1
    os.close(fd)


def test_a_file_that_may_not_be_read_is_ignored(
    mine: GpuLocks, place: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = {f"{A}.{ME}", f"{B}.{THEM}"}
    for name in closed:
        (place / name).touch(mode=0)
    real = os.open

    def opened(path: Any, *more: Any, **names: Any) -> int:
        if path in closed:  # root may read everything
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, *more, **names)

    monkeypatch.setattr(os, "open", opened)
    assert mine.take(KEY, (A, B)) is None
    assert mine.paths(KEY) == [f"{place}/{B}.{ME}"]
    assert len(said) == 2


def test_the_common_lock_of_earlier_versions_is_not_waited_for(mine: GpuLocks, place: Path) -> None:
    (place / A).touch()
    fd = exclusively(place / A)
    assert promptly(lambda: mine.take(KEY, (A,))) is None
    os.close(fd)


def test_an_exclusive_lock_on_our_file_holds_the_gpu_back_and_nothing_else(
    mine: GpuLocks, place: Path, said: list[str]
) -> None:
    path = place / f"{A}.{ME}"
    path.touch()
    fd = exclusively(path)
    for _ in range(3):
        reason = promptly(lambda: mine.take(KEY, (A,)))
        assert f"another process has locked {path}" in reason
    assert mine.holder(A) == reason
    assert len(said) == 1
    assert mine.take(KEY, (B,)) is None
    os.close(fd)


def test_a_lease_on_a_lock_file_is_not_waited_for(mine: GpuLocks, place: Path) -> None:
    path = place / f"{A}.{THEM}"
    path.touch()
    fd = os.open(path, os.O_RDWR)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel's request to give it up
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    try:
        assert promptly(lambda: mine.take(KEY, (A,))) is None
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, before)


def test_more_files_than_there_can_be_locks_are_not_read(
    mine: GpuLocks, place: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "MAX_FILES", 20)
    for number in range(30):
        (place / f"{A}.{THEM + number}").touch()
    opened: list[Any] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda *a, **k: opened.append(a) or real(*a, **k))
    assert mine.take(KEY, (A,)) is None
    assert mine.paths(KEY) == [f"{place}/{A}.{ME}"], "others still see ours"
    assert len(opened) < 5
    assert len(said) == 1
    assert "more than 20 files" in said[0]


def test_names_that_are_no_locks_are_left_alone(mine: GpuLocks, place: Path) -> None:
    for name in (f"{A}.", f"{A}.0{THEM}", f"{A}.٣", f"{A}.-1", A, f"{A}.x", f".{THEM}"):
        (place / name).touch()
    assert mine.take(KEY, (A,)) is None
    assert mine.problems == {}


# -- the directory itself ---------------------------------------------------------------------


def test_a_directory_of_ours_that_is_not_sticky_is_made_so(mine: GpuLocks, place: Path) -> None:
    place.chmod(0o777)
    assert mine.take(KEY, (A,)) is None
    assert stat.S_IMODE(place.stat().st_mode) == 0o1777
    assert mine.paths(KEY)


@pytest.mark.parametrize("kind", ["file", "link", "fifo", "not sticky", "closed"])
def test_a_directory_that_cannot_be_trusted_is_not_used_and_reported_once(
    mine: GpuLocks, place: Path, said: list[str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.rmdir()
    if kind == "file":
        place.touch()
    elif kind == "link":
        place.symlink_to(place.parent)
    elif kind == "fifo":
        os.mkfifo(place)
    else:
        place.mkdir()
        place.chmod(0o777 if kind == "not sticky" else 0o700)
        monkeypatch.setattr(os, "getuid", lambda: THEM)
    before = sorted(os.listdir(place.parent))
    for _ in range(3):
        assert promptly(lambda: mine.take(KEY, (A,))) is None
        assert mine.paths(KEY) == []
        assert promptly(lambda: mine.holder(A)) is None
    assert len(said) == 1
    assert str(place) in said[0]
    assert sorted(os.listdir(place.parent)) == before
    assert place.is_symlink() or not place.is_dir() or os.listdir(place) == []


# -- shortages --------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, code: int) -> Callable[[], None]:
    """Have no new file be made; return how to end that."""
    real = os.open

    def opened(path: Any, flags: int, *more: Any, **names: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(code, os.strerror(code), path)
        return real(path, flags, *more, **names)

    monkeypatch.setattr(os, "open", opened)
    return lambda: monkeypatch.setattr(os, "open", real)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EIO])
def test_a_shortage_is_a_reason_to_wait_told_once_with_longer_and_longer_pauses(
    mine: GpuLocks, said: list[str], monkeypatch: pytest.MonkeyPatch, code: int
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
    assert len(said) == 1
    over()
    assert mine.take(KEY, (A,)) is not None, "it is not tried before the pause is over"
    now += holds.LONGEST_PAUSE_SECONDS
    assert mine.holder(A) is None
    assert mine.problems == {}
    assert mine._pauses == {}
    assert mine.take(KEY, (A,)) is None


def test_a_read_only_disk_does_not_keep_jobs_from_gpus(
    mine: GpuLocks, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, errno.EROFS)
    assert mine.take(KEY, (A,)) is None
    assert mine.paths(KEY) == []
    assert len(said) == 1
