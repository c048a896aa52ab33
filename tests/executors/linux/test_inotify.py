"""The kernel tells what appears in a directory, and once that a file has grown."""

import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.executors.linux.inotify import Inotify


@pytest.fixture
def inotify() -> Iterator[Inotify]:
    found = Inotify()
    yield found
    found.close()


def readable(inotify: Inotify) -> bool:
    return bool(select.select([inotify.fd], [], [], 0)[0])


def test_what_appears_in_a_directory_is_told_by_name(inotify: Inotify, tmp_path: Path) -> None:
    watch = inotify.watch_directory(str(tmp_path))
    assert not readable(inotify)
    (tmp_path / "7.0").mkdir()
    (tmp_path / "a rather long name").touch()
    (tmp_path / "a rather long name").rename(tmp_path / "8.1")
    assert readable(inotify)
    found = [(change.watch, change.name) for change in inotify.changes()]
    assert found == [(watch, "7.0"), (watch, "a rather long name"), (watch, "8.1")]
    assert inotify.changes() == []


def test_a_file_that_grows_is_told_once_however_often_it_is_written(
    inotify: Inotify, tmp_path: Path
) -> None:
    path = tmp_path / "report"
    path.touch()
    watch = inotify.watch_file(str(path))
    with path.open("ab", buffering=0) as file:
        for _ in range(100):
            file.write(b"line\n")
        found = inotify.changes()
        assert [(change.watch, change.over) for change in found] == [(watch, False), (watch, True)]
        again = inotify.watch_file(str(path))
        file.write(b"line\n")
        assert [change.watch for change in inotify.changes()] == [again, again]


def test_what_is_written_to_other_files_of_a_directory_wakes_nobody(
    inotify: Inotify, tmp_path: Path
) -> None:
    steps = tmp_path / "steps"
    steps.touch()
    inotify.watch_directory(str(tmp_path))
    steps.write_text("x" * 128)
    assert not readable(inotify)


def test_a_watch_on_what_is_gone_ends(inotify: Inotify, tmp_path: Path) -> None:
    place = tmp_path / "7.0"
    place.mkdir()
    watch = inotify.watch_directory(str(place))
    place.rmdir()
    assert [(change.watch, change.over) for change in inotify.changes()] == [(watch, True)]
    inotify.unwatch(watch)


def test_more_than_the_kernel_remembers_is_told_as_that(tmp_path: Path, inotify: Inotify) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    inotify.watch_directory(str(tmp_path))
    one, other = tmp_path / "a", tmp_path / "b"
    one.touch()
    for _ in range(most // 2 + 2):  # two names in turn: equal news in a row are told once
        one.rename(other)
        other.rename(one)
    told = []
    while found := inotify.changes():
        told += [change.lost for change in found]
    assert told[-1]
    assert not any(told[:-1])


def test_a_place_that_is_not_there_is_an_error(inotify: Inotify, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        inotify.watch_file(str(tmp_path / "report"))
    (tmp_path / "link").symlink_to("/tmp")
    with pytest.raises(NotADirectoryError):
        inotify.watch_directory(str(tmp_path / "link"))
