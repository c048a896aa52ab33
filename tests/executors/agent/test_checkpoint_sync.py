"""Checkpoints to a node and back, through a real sshd on loopback: exact copies."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from executors.agent.test_tree_upload import Server, busybox, server
from stoker.executors.agent.session.remote_shell import CarryError, RemoteShell
from stoker.executors.agent.transfer import checkpoint_sync as saved

__all__ = ["busybox", "server"]

OpenShell = Callable[[Path], RemoteShell]


@pytest.fixture(params=["rsync", "tar", "busybox"])
def open_shell(request: pytest.FixtureRequest) -> OpenShell:
    kind = "busybox" if request.param == "busybox" else "server"
    made: Server = request.getfixturevalue(kind)
    return lambda root: made.shell(root, rsync=request.param == "rsync")


def write(directory: Path, **files: str) -> Path:
    for name, text in files.items():
        path = directory / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def content(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): os.readlink(path)
        if path.is_symlink()
        else path.read_text()
        for path in sorted(directory.rglob("*"))
        if path.is_symlink() or not path.is_dir()
    }


def test_send_makes_the_remote_checkpoints_equal_to_the_local_ones(
    open_shell: OpenShell, tmp_path: Path
) -> None:
    local = write(tmp_path / "here/abc-1", model="2", logs__version_1__last="new")
    (local / "last").symlink_to("model")
    remote = write(tmp_path / "root/checkpoints/abc-1", model="1", logs__version_0__old="old")
    os.utime(local / "model", ns=(5 * 10**9 + 250_000_000, 5 * 10**9 + 250_000_000))
    os.utime(remote / "model", ns=(5 * 10**9, 5 * 10**9))
    saved.send(open_shell(tmp_path / "root"), str(local))
    assert content(remote) == {"last": "model", "logs/version_1/last": "new", "model": "2"}
    assert os.listdir(tmp_path / "root/checkpoints") == ["abc-1"]
    assert int((remote / "model").stat().st_mtime) == 5


def test_download_makes_the_local_checkpoints_equal_to_the_remote_ones(
    open_shell: OpenShell, tmp_path: Path
) -> None:
    remote = write(tmp_path / "root/checkpoints/abc-1", model="2", same="s", deep__er__new="n")
    local = write(tmp_path / "here/abc-1", model="1", same="s", gone="g", old__er__gone="g")
    (local / "link").symlink_to("gone")
    (remote / "out").symlink_to("/etc/passwd")
    os.utime(remote / "model", (5, 5))
    saved.download(open_shell(tmp_path / "root"), str(local))
    assert content(local) == {"deep/er/new": "n", "model": "2", "same": "s"}
    assert not (local / "old").exists()
    assert (local / "model").stat().st_mtime == 5


def test_checkpoints_of_other_parts_do_not_replace_newer_files(
    server: Server, tmp_path: Path
) -> None:
    remote = write(tmp_path / "root/checkpoints/abc-1", model="part 1", shard_1="1")
    os.utime(remote / "model", (5, 5))
    local = write(tmp_path / "here/abc-1", model="part 0", shard_0="0")
    saved.download(server.shell(tmp_path / "root", rsync=True), str(local), part=1)
    assert content(local) == {"model": "part 0", "shard_0": "0", "shard_1": "1"}
    saved.download(server.shell(tmp_path / "root", rsync=True), str(local), part=0)
    assert content(local) == {"model": "part 1", "shard_0": "0", "shard_1": "1"}


def test_send_without_local_checkpoints_changes_nothing(
    open_shell: OpenShell, tmp_path: Path
) -> None:
    remote = write(tmp_path / "root/checkpoints/abc-1", model="1")
    saved.send(open_shell(tmp_path / "root"), str(tmp_path / "here/abc-1"))
    (tmp_path / "here/abc-1").mkdir(parents=True)
    saved.send(open_shell(tmp_path / "root"), str(tmp_path / "here/abc-1"))
    assert content(remote) == {"model": "1"}


def test_a_failed_download_leaves_the_local_checkpoints(
    open_shell: OpenShell, tmp_path: Path
) -> None:
    local = write(tmp_path / "here/abc-1", model="1")
    with pytest.raises(CarryError):
        saved.download(open_shell(tmp_path / "root"), str(local))
    assert content(local) == {"model": "1"}
    (tmp_path / "here/abc-2").write_text("in the way")
    write(tmp_path / "root/checkpoints/abc-2", model="1")
    with pytest.raises(CarryError, match="cannot write to"):
        saved.download(open_shell(tmp_path / "root"), str(tmp_path / "here/abc-2"))
