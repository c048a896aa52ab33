"""Checkpoints out and back, through a real sshd on loopback: exactly what the other side has."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from executors.agent.test_tree_upload import Server, busybox, server
from stoker.executors.agent.session.remote_shell import CarryError, RemoteShell
from stoker.executors.agent.transfer import checkpoint_sync as saved

__all__ = ["busybox", "server"]

Ways = Callable[[Path], RemoteShell]


@pytest.fixture(params=["rsync", "tar", "busybox"])
def to(request: pytest.FixtureRequest) -> Ways:
    kind = "busybox" if request.param == "busybox" else "server"
    made: Server = request.getfixturevalue(kind)
    return lambda root: made.way(root, rsync=request.param == "rsync")


def write(place: Path, **files: str) -> Path:
    for name, text in files.items():
        path = place / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place


def content(place: Path) -> dict[str, str]:
    return {
        str(path.relative_to(place)): os.readlink(path) if path.is_symlink() else path.read_text()
        for path in sorted(place.rglob("*"))
        if path.is_symlink() or not path.is_dir()
    }


def test_there_is_then_what_was_here(to: Ways, tmp_path: Path) -> None:
    here = write(tmp_path / "here/abc-1", model="2", logs__version_1__last="new")
    (here / "last").symlink_to("model")
    there = write(tmp_path / "root/checkpoints/abc-1", model="1", logs__version_0__old="old")
    os.utime(here / "model", ns=(5 * 10**9 + 250_000_000, 5 * 10**9 + 250_000_000))
    os.utime(there / "model", ns=(5 * 10**9, 5 * 10**9))
    saved.send(to(tmp_path / "root"), str(here))
    assert content(there) == {"last": "model", "logs/version_1/last": "new", "model": "2"}
    assert os.listdir(tmp_path / "root/checkpoints") == ["abc-1"]
    assert int((there / "model").stat().st_mtime) == 5


def test_here_is_then_what_was_there(to: Ways, tmp_path: Path) -> None:
    there = write(tmp_path / "root/checkpoints/abc-1", model="2", same="s", deep__er__new="n")
    here = write(tmp_path / "here/abc-1", model="1", same="s", gone="g", old__er__gone="g")
    (here / "link").symlink_to("gone")
    (there / "out").symlink_to("/etc/passwd")
    os.utime(there / "model", (5, 5))
    saved.download(to(tmp_path / "root"), str(here))
    assert content(here) == {"deep/er/new": "n", "model": "2", "same": "s"}
    assert not (here / "old").exists()
    assert (here / "model").stat().st_mtime == 5


def test_what_others_add_replaces_nothing_newer(server: Server, tmp_path: Path) -> None:
    there = write(tmp_path / "root/checkpoints/abc-1", model="part 1", shard_1="1")
    os.utime(there / "model", (5, 5))
    here = write(tmp_path / "here/abc-1", model="part 0", shard_0="0")
    saved.download(server.way(tmp_path / "root", rsync=True), str(here), part=1)
    assert content(here) == {"model": "part 0", "shard_0": "0", "shard_1": "1"}
    saved.download(server.way(tmp_path / "root", rsync=True), str(here), part=0)
    assert content(here) == {"model": "part 1", "shard_0": "0", "shard_1": "1"}


def test_nothing_here_changes_nothing_there(to: Ways, tmp_path: Path) -> None:
    there = write(tmp_path / "root/checkpoints/abc-1", model="1")
    saved.send(to(tmp_path / "root"), str(tmp_path / "here/abc-1"))
    (tmp_path / "here/abc-1").mkdir(parents=True)
    saved.send(to(tmp_path / "root"), str(tmp_path / "here/abc-1"))
    assert content(there) == {"model": "1"}


def test_what_cannot_be_carried_leaves_what_was_here(to: Ways, tmp_path: Path) -> None:
    here = write(tmp_path / "here/abc-1", model="1")
    with pytest.raises(CarryError):
        saved.download(to(tmp_path / "root"), str(here))
    assert content(here) == {"model": "1"}
    (tmp_path / "here/abc-2").write_text("in the way")
    write(tmp_path / "root/checkpoints/abc-2", model="1")
    with pytest.raises(CarryError, match="cannot write to"):
        saved.download(to(tmp_path / "root"), str(tmp_path / "here/abc-2"))
