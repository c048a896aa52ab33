"""The id of a snapshot depends on its content only: what changes it and what is excluded."""

import os
import random
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.executors.agent.transfer import snapshot as trees
from stoker.executors.agent.transfer.snapshot import (
    BadPath,
    Hashes,
    TooLarge,
    changed,
    take_snapshot,
)

OLD = 1_600_000_000


def fill(base: Path) -> Path:
    """Create a small project."""
    (base / "src").mkdir(parents=True)
    (base / "train.py").write_text("print()\n")
    (base / "src" / "model.py").write_text("pass\n")
    (base / "run.sh").write_text("#!/bin/sh\n")
    (base / "run.sh").chmod(0o755)
    (base / "latest").symlink_to("src/model.py")
    (base / "empty").mkdir()
    return base


def test_a_tree_lists_files_links_and_empty_directories(tmp_path: Path) -> None:
    tree = take_snapshot(str(fill(tmp_path / "a")))
    assert tree.names == ("empty", "latest", "run.sh", "src/model.py", "train.py")
    assert tree.links == ("latest",)
    assert tree.size == len("print()\npass\n#!/bin/sh\n")
    assert tree.base == str(tmp_path / "a")
    assert int(tree.id, 16) >= 0


def test_equal_content_has_equal_ids_in_any_directory_at_any_time(tmp_path: Path) -> None:
    one, two = fill(tmp_path / "a"), fill(tmp_path / "b")
    for path in two.rglob("*"):
        os.utime(path, (OLD, OLD), follow_symlinks=False)
    (two / "train.py").chmod(0o640)
    assert take_snapshot(str(one)).id == take_snapshot(str(two)).id


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda base: (base / name).write_text(text)


def relink(base: Path) -> None:
    (base / "latest").unlink()
    (base / "latest").symlink_to("train.py")


@pytest.mark.parametrize(
    "change",
    [
        write("train.py", "Print()\n"),
        write("new", ""),
        lambda base: (base / "train.py").rename(base / "Train.py"),
        lambda base: (base / "train.py").chmod(0o755),
        lambda base: (base / "run.sh").chmod(0o644),
        relink,
        lambda base: (base / "empty").rmdir(),
        lambda base: (base / "src" / "empty").mkdir(),
        lambda base: (base / "train.py").unlink(),
    ],
    ids=["content", "new file", "name", "executable", "no longer executable", "link target",
         "directory gone", "new directory", "file gone"],
)  # fmt: skip
def test_a_change_gives_another_id(change: Callable[[Path], object], tmp_path: Path) -> None:
    base = fill(tmp_path / "a")
    before = take_snapshot(str(base)).id
    change(base)
    assert take_snapshot(str(base)).id != before


def test_a_link_and_a_file_with_its_target_as_text_differ(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "x").symlink_to("y")
    (tmp_path / "b" / "x").write_text("y")
    assert take_snapshot(str(tmp_path / "a")).id != take_snapshot(str(tmp_path / "b")).id


CONTENTS = st.dictionaries(
    st.text("abc", min_size=1, max_size=3), st.tuples(st.binary(max_size=4), st.booleans()),
    max_size=5,
)  # fmt: skip


@given(CONTENTS, CONTENTS, st.randoms())
def test_ids_are_equal_exactly_if_contents_are(
    one: dict[str, tuple[bytes, bool]], two: dict[str, tuple[bytes, bool]], chance: random.Random
) -> None:
    ids = []
    for files in (one, one, two):
        with tempfile.TemporaryDirectory() as base:
            items = list(files.items())
            chance.shuffle(items)
            for name, (content, executable) in items:
                Path(base, name).write_bytes(content)
                Path(base, name).chmod(0o700 if executable else 0o600)
            ids.append(take_snapshot(base).id)
    assert ids[0] == ids[1]
    assert (ids[0] == ids[2]) == (one == two)


# ------------------------------------------------------------------------- what is included


def test_ignore_files_apply_below_their_directory(tmp_path: Path) -> None:
    base = fill(tmp_path / "a")
    (base / ".stokerignore").write_text("*.log\n/empty/\n")
    (base / "src" / ".stokerignore").write_text("!keep.log\n")
    for name in ("a.log", "src/keep.log", "src/b.log"):
        (base / name).write_text("")
    tree = take_snapshot(str(base), exclude=["latest"])
    assert tree.names == (
        ".stokerignore", "run.sh", "src/.stokerignore", "src/keep.log", "src/model.py", "train.py"
    )  # fmt: skip


def test_a_directory_with_only_excluded_files_is_included_as_empty(tmp_path: Path) -> None:
    (tmp_path / "results" / "old").mkdir(parents=True)
    (tmp_path / "results" / "old" / "a.pt").write_text("")
    assert take_snapshot(str(tmp_path), exclude=["*.pt"]).names == ("results/old",)


def test_only_the_given_paths_are_included_under_the_rules_above_them(tmp_path: Path) -> None:
    base = fill(tmp_path / "a")
    (base / ".stokerignore").write_text("*.log\nsrc/\n")
    (base / "src" / "a.log").write_text("")
    tree = take_snapshot(str(base), ["src", "train.py", "./src/model.py"])
    assert tree.names == ("src/model.py", "train.py")  # `src` was requested by name


@pytest.mark.parametrize("path", ["..", "../b", "/etc/passwd", "src/../../b"])
def test_a_path_outside_is_rejected(path: str, tmp_path: Path) -> None:
    base = fill(tmp_path / "a")
    fill(tmp_path / "b")
    with pytest.raises(BadPath, match=r"is not below .*a; give a path inside it"):
        take_snapshot(str(base), [path])


def test_a_missing_path_and_one_through_a_link_are_rejected(tmp_path: Path) -> None:
    base = fill(tmp_path / "a")
    with pytest.raises(BadPath, match="cannot send 'nothing': No such file"):
        take_snapshot(str(base), ["nothing"])
    with pytest.raises(BadPath, match="No such file"):
        take_snapshot(str(tmp_path / "missing"))
    (base / "out").symlink_to("/etc")
    with pytest.raises(BadPath, match="leads through the link 'out'"):
        take_snapshot(str(base), ["out/passwd"])


def test_pipes_and_sockets_are_excluded(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(tmp_path, os.O_RDONLY)
        try:
            server.bind(f"/proc/self/fd/{here}/socket")  # a path short enough for a socket
        finally:
            os.close(here)
        (tmp_path / "file").write_text("")
        assert take_snapshot(str(tmp_path)).names == ("file",)
        with pytest.raises(BadPath, match="neither a file nor a directory"):
            take_snapshot(str(tmp_path), ["pipe"])


def test_names_with_any_bytes_are_included(tmp_path: Path) -> None:
    names = [b"a b", b"-n", b"new\nline", b"quo'te\"", "\u00fcml".encode(), b"\xff\xfe", b"#x"]
    for name in names:
        with open(os.path.join(os.fsencode(tmp_path), name), "wb"):
            pass
    assert sorted(map(os.fsencode, take_snapshot(str(tmp_path)).names)) == sorted(names)


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A directory, while this process is not root."""
    me = os.geteuid()
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        if me == 0:
            os.chown(base, 65534, -1)
            os.seteuid(65534)
        try:
            yield Path(base)
        finally:
            os.seteuid(me)


@pytest.mark.parametrize("size", [1, trees.BIG])
def test_an_unreadable_file_is_named_in_the_error(size: int, unprivileged: Path) -> None:
    base = fill(unprivileged / "a")
    (base / "src" / "model.py").write_bytes(bytes(size))
    (base / "src" / "model.py").chmod(0)
    with pytest.raises(BadPath) as caught:
        take_snapshot(str(base))
    assert str(caught.value) == (
        "cannot read 'src/model.py': Permission denied; "
        "make it readable or exclude it in .stokerignore."
    )


def test_the_error_of_too_much_data_has_size_cause_and_remedy(tmp_path: Path) -> None:
    for name, size in (("data/a", 3000), ("data/b", 3000), ("w.pt", 5000), ("x", 10), ("y", 9)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    assert take_snapshot(str(tmp_path), max_bytes=11_019).size == 11_019
    with pytest.raises(TooLarge) as caught:
        take_snapshot(str(tmp_path), max_bytes=11_018)
    assert str(caught.value) == (
        f"{tmp_path} has 10.8 KiB to send, more than 10.8 KiB; the largest are "
        "data/ (5.9 KiB), w.pt (4.9 KiB), x (10 bytes): exclude unneeded files in "
        ".stokerignore, select files with --send, or use a directory that this machine and "
        "the node share."
    )
    with pytest.raises(TooLarge, match=r"the largest are data/a \(2.9 KiB\), data/b"):
        take_snapshot(str(tmp_path), ["data"], max_bytes=1)


# ------------------------------------------------------------------------------ the cache


class Reads:
    """Counts how often files are read to be hashed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._lock = threading.Lock()
        real = trees._digest

        def counted(*args: object) -> bytes | None:
            with self._lock:
                self.count += 1
            return real(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(trees, "_digest", counted)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that an hour has passed since the files were written."""
    real = trees.time.time_ns
    monkeypatch.setattr(trees.time, "time_ns", lambda: real() + 3600 * 10**9)


@pytest.mark.usefixtures("later")
def test_a_file_that_has_not_changed_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, cache, reads = fill(tmp_path / "a"), Hashes(), Reads(monkeypatch)
    (base / "big").write_bytes(bytes(trees.BIG * 2))
    first = take_snapshot(str(base), cache=cache)
    assert reads.count == 5
    assert replace(take_snapshot(str(base), cache=cache), at=first.at) == first
    assert reads.count == 5
    (base / "train.py").write_text("other()\n")
    assert take_snapshot(str(base), cache=cache).id != first.id
    assert reads.count == 6


@pytest.mark.usefixtures("later")
def test_a_change_with_the_same_size_and_time_is_noticed(tmp_path: Path) -> None:
    cache, file = Hashes(), tmp_path / "weights"
    file.write_text("one")
    os.utime(file, (OLD, OLD))
    before = take_snapshot(str(tmp_path), cache=cache).id
    file.unlink()
    file.write_text("two")
    os.utime(file, (OLD, OLD))
    assert take_snapshot(str(tmp_path), cache=cache).id != before


def test_the_hash_of_a_recently_written_file_is_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, cache = Reads(monkeypatch), Hashes()
    file = tmp_path / "file"
    file.write_text("one")
    now = os.stat(file).st_ctime_ns
    monkeypatch.setattr(trees.time, "time_ns", lambda: now + 1_900_000_000)
    take_snapshot(str(tmp_path), cache=cache)
    take_snapshot(str(tmp_path), cache=cache)
    assert reads.count == 2


def test_the_cache_is_bounded() -> None:
    cache = Hashes(max_entries=3)
    for number in range(10):
        cache.keep((number,), b"")
    assert [number for number in range(10) if cache.find((number,)) is not None] == [7, 8, 9]


def test_a_file_that_changed_after_the_snapshot_is_found(tmp_path: Path) -> None:
    base = fill(tmp_path / "a")
    tree = take_snapshot(str(base))
    assert changed(tree) is None
    (base / "src" / "new.py").write_text("")  # did not exist: it is not included
    assert changed(tree) is None
    (base / "src" / "model.py").write_text("other\n")
    assert changed(tree) == "src/model.py"
    (base / "latest").unlink()
    assert changed(tree) == "latest"
