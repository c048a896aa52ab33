"""The kernel reports new files of a directory, and once that a file has grown."""

import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.executors.linux.inotify import Inotify


@pytest.fixture
def inotify() -> Iterator[Inotify]:
    inotify = Inotify()
    yield inotify
    inotify.close()


def readable(inotify: Inotify) -> bool:
    return bool(select.select([inotify.fd], [], [], 0)[0])


def test_a_new_file_in_a_directory_is_reported_by_name(inotify: Inotify, tmp_path: Path) -> None:
    watch = inotify.watch_directory(str(tmp_path))
    assert not readable(inotify)
    (tmp_path / "7.0").mkdir()
    (tmp_path / "a rather long name").touch()
    (tmp_path / "a rather long name").rename(tmp_path / "8.1")
    assert readable(inotify)
    names = [(change.watch, change.name) for change in inotify.changes()]
    assert names == [(watch, "7.0"), (watch, "a rather long name"), (watch, "8.1")]
    assert inotify.changes() == []


def test_a_growing_file_is_reported_once_until_it_is_watched_again(
    inotify: Inotify, tmp_path: Path
) -> None:
    path = tmp_path / "report"
    path.touch()
    watch = inotify.watch_file(str(path))
    with path.open("ab", buffering=0) as file:
        for _ in range(100):
            file.write(b"line\n")
        changes = inotify.changes()
        assert [(change.watch, change.over) for change in changes] == [
            (watch, False),
            (watch, True),
        ]
        again = inotify.watch_file(str(path))
        file.write(b"line\n")
        assert [change.watch for change in inotify.changes()] == [again, again]


def test_writes_to_other_files_of_a_directory_cause_no_event(
    inotify: Inotify, tmp_path: Path
) -> None:
    steps = tmp_path / "steps"
    steps.touch()
    inotify.watch_directory(str(tmp_path))
    steps.write_text("x" * 128)
    assert not readable(inotify)


def test_a_watch_of_a_deleted_file_ends(inotify: Inotify, tmp_path: Path) -> None:
    directory = tmp_path / "7.0"
    directory.mkdir()
    watch = inotify.watch_directory(str(directory))
    directory.rmdir()
    assert [(change.watch, change.over) for change in inotify.changes()] == [(watch, True)]
    inotify.unwatch(watch)


def test_an_overflow_of_the_kernels_queue_is_reported(tmp_path: Path, inotify: Inotify) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    inotify.watch_directory(str(tmp_path))
    one, other = tmp_path / "a", tmp_path / "b"
    one.touch()
    for _ in range(most // 2 + 2):  # two names in turn: equal events in a row are merged
        one.rename(other)
        other.rename(one)
    lost = []
    while changes := inotify.changes():
        lost += [change.lost for change in changes]
    assert lost[-1]
    assert not any(lost[:-1])


def test_watching_a_missing_directory_is_an_error(inotify: Inotify, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        inotify.watch_file(str(tmp_path / "report"))
    (tmp_path / "link").symlink_to("/tmp")
    with pytest.raises(NotADirectoryError):
        inotify.watch_directory(str(tmp_path / "link"))
