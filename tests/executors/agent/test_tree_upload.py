"""Uploads of trees and downloads of results, through a real sshd on loopback."""

import contextlib
import io
import os
import socket
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import require
from e2e.daemon_fixture import until
from stoker.executors.agent.session.remote_shell import CarryError, LinkLost, RemoteShell
from stoker.executors.agent.transfer.result_download import download, unpack
from stoker.executors.agent.transfer.snapshot import DirectorySnapshot, take_snapshot
from stoker.executors.agent.transfer.staging import AttemptWorkspace
from stoker.executors.agent.transfer.tree_upload import send
from stoker.executors.agent.transfer.upload_progress import UploadProgress
from stoker.executors.ssh.address import Address
from stoker.executors.ssh.transport import SshTransport

SSHD = "/usr/sbin/sshd"
APPLETS = ("sh", "tar", "find", "xargs", "mkdir", "mv", "rm", "cat", "printf")


class Server:
    """A private sshd and open connections to it."""

    def __init__(self, base: Path, environment: str = "") -> None:
        self.base = base
        base.mkdir()
        self.key = base / "it's a key"  # a name with blanks and quotes
        for key in (self.key, base / "host"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        (base / "authorized").write_bytes(self.key.with_suffix(".pub").read_bytes())
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        (base / "config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {base}/host\nPidFile none\n"
            f"AuthorizedKeysFile {base}/authorized\nStrictModes no\nUsePAM no\n"
            f"PasswordAuthentication no\nPermitRootLogin yes\nMaxSessions 100\n{environment}"
        )
        if os.getuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        self._log = (base / "log").open("wb")
        self._processes = [
            subprocess.Popen([SSHD, "-D", "-e", "-f", base / "config"], stderr=self._log)
        ]
        until(self._answers)
        self.address = Address("127.0.0.1", port=self.port, key=str(self.key))

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def open(self, name: str = "a 'c'") -> "subprocess.Popen[bytes]":
        """Open a connection with a control socket of this name."""
        control = str(self.base / name)
        process = subprocess.Popen(
            self.address.command(
                "none", "-S", control, "-F", "none", "-N", "-o", "ControlMaster=yes",
                "-o", "UserKnownHostsFile=/dev/null",
            ),
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self._processes.append(process)
        until(lambda: os.path.exists(control) or process.poll() is not None)
        assert process.poll() is None
        return process

    def shell(self, root: Path, rsync: bool, name: str = "a 'c'") -> RemoteShell:
        transport = SshTransport(self.address, str(self.base / name))
        return RemoteShell(transport, str(root), rsync)

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._log.close()


@contextlib.contextmanager
def serving(environment: str = "") -> Iterator[Server]:
    require("ssh", SSHD, "ssh-keygen", "rsync", "tar")
    with tempfile.TemporaryDirectory(prefix="sk-", dir="/tmp") as base:
        server = Server(Path(base) / "s", environment)
        try:
            server.open()
            yield server
        finally:
            server.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


@pytest.fixture(scope="module")
def busybox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with little more than busybox."""
    require("busybox")
    tools = tmp_path_factory.mktemp("bin")
    for name in APPLETS:
        (tools / name).symlink_to("/bin/busybox")
    with serving(f"SetEnv PATH={tools}\n") as made:
        yield made


@pytest.fixture(params=["rsync", "tar", "busybox"])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> RemoteShell:
    """A shell on the server, for each kind of transfer."""
    kind: str = request.param
    server: Server = request.getfixturevalue("busybox" if kind == "busybox" else "server")
    return server.shell(tmp_path / "it's there" / ".stoker", rsync=kind == "rsync")


ODD = ["a b", "-n", "#c", ";d", "quo'te\"", "back\\slash\\n", "ümläut", "star*", "$HOME", "[x]",
       "!bang", "~", "dir with blank/-x", "host:file", "--files-from=x", "@x"]  # fmt: skip


def project(base: Path) -> Path:
    """Create some files of each kind."""
    base.mkdir()
    for number, name in enumerate(ODD):
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text(f"file {number}\n")
    with open(os.path.join(os.fsencode(base), b"latin\xe9"), "wb") as file:
        file.write(b"x")
    (base / ("long" * 60)).write_text("a name of 240 letters")
    (base / "big").write_bytes(os.urandom(1 << 21))
    (base / "run.sh").write_text("#!/bin/sh\n")
    (base / "run.sh").chmod(0o555)
    (base / "dir with blank").chmod(0o555)
    (base / "shared").write_text("")
    (base / "shared").chmod(0o664)
    (base / "link").symlink_to("big")
    (base / "dangling").symlink_to("/no/where else")
    (base / "empty" / "inside").mkdir(parents=True)
    return base


def uploaded(shell: RemoteShell, tree: DirectorySnapshot) -> DirectorySnapshot:
    """Return a snapshot of the uploaded tree."""
    return take_snapshot(f"{shell.root}/trees/{tree.id}")


def test_a_sent_tree_has_exactly_the_files_of_its_snapshot(
    shell: RemoteShell, tmp_path: Path
) -> None:
    tree = take_snapshot(str(project(tmp_path / "project")))
    send(shell, tree)
    received = uploaded(shell, tree)
    assert received.names == tree.names
    assert received.id == tree.id
    assert os.listdir(f"{shell.root}/trees") == [tree.id]
    directory = Path(shell.root, "trees", tree.id)
    for name in ("run.sh", "shared"):
        mode = (directory / name).stat().st_mode
        assert mode == (tmp_path / "project" / name).stat().st_mode
    for path in (directory, directory / "dir with blank"):
        mode = path.stat().st_mode & 0o777
        assert mode == 0o700, "only its owner may enter and remove it"


def test_the_bytes_of_an_upload_are_counted(shell: RemoteShell, tmp_path: Path) -> None:
    tree = take_snapshot(str(project(tmp_path / "project")))
    progress = UploadProgress(tree.size)
    send(shell, tree, progress=progress)
    links = sum(len(os.readlink(f"{tree.base}/{name}")) for name in tree.links)
    assert 2 << 20 < progress.total - links <= progress.sent <= progress.total


def test_a_name_with_a_newline_is_sent(shell: RemoteShell, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "new\nline").write_text("x")
    tree = take_snapshot(str(tmp_path / "p"))
    send(shell, tree)
    assert uploaded(shell, tree).id == tree.id


def test_an_empty_tree_is_an_empty_directory(shell: RemoteShell, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    tree = take_snapshot(str(tmp_path / "p"))
    send(shell, tree)
    assert os.listdir(f"{shell.root}/trees/{tree.id}") == []


def test_an_existing_tree_is_not_sent_again(shell: RemoteShell, tmp_path: Path) -> None:
    tree = take_snapshot(str(project(tmp_path / "project")))
    send(shell, tree)
    before = os.stat(f"{shell.root}/trees/{tree.id}/big")
    (tmp_path / "project" / "big").unlink()  # an upload would notice this change
    send(shell, tree)
    assert os.stat(f"{shell.root}/trees/{tree.id}/big") == before


def test_only_paths_of_the_snapshot_are_sent(shell: RemoteShell, tmp_path: Path) -> None:
    tree = take_snapshot(str(project(tmp_path / "project")), ["run.sh", "dir with blank"])
    send(shell, tree)
    assert uploaded(shell, tree).names == ("dir with blank/-x", "run.sh")


def test_a_small_change_sends_few_bytes(server: Server, tmp_path: Path) -> None:
    shell, base = server.shell(tmp_path / "r", rsync=True), project(tmp_path / "project")
    first = take_snapshot(str(base))
    send(shell, first)
    (base / "a b").write_text("another\n")
    second = take_snapshot(str(base))
    send(shell, second, reuse=first.id)
    assert uploaded(shell, second).id == second.id
    big = [os.stat(f"{shell.root}/trees/{tree.id}/big").st_ino for tree in (first, second)]
    assert big[0] == big[1], "the same file under two names"
    assert uploaded(shell, first).id == first.id


def test_a_changed_file_with_the_same_size_and_time_is_sent(server: Server, tmp_path: Path) -> None:
    shell = server.shell(tmp_path / "r", rsync=True)
    (tmp_path / "p").mkdir()
    ids = []
    for content in ("one", "two"):
        (tmp_path / "p" / "file").write_text(content)
        os.utime(tmp_path / "p" / "file", (1_600_000_000, 1_600_000_000))
        tree = take_snapshot(str(tmp_path / "p"))
        send(shell, tree, reuse=ids[-1] if ids else "no-such-tree")
        ids.append(tree.id)
        assert uploaded(shell, tree).id == tree.id


def test_a_file_that_changes_while_it_is_sent_is_noticed(
    shell: RemoteShell, tmp_path: Path
) -> None:
    base = project(tmp_path / "project")
    for name, change in (
        ("a b", lambda path: path.write_text("longer than it was\n")),
        ("big", lambda path: path.unlink()),
        ("-n", lambda path: path.write_text("")),
    ):
        tree = take_snapshot(str(base))
        change(base / name)
        with pytest.raises(CarryError) as caught:
            send(shell, tree)
        assert f"'{name}' in {base} changed while it was being sent; submit again" in str(
            caught.value
        )
        assert os.listdir(f"{shell.root}/trees") == []


def test_concurrent_uploads_of_one_tree_leave_one_tree(server: Server, tmp_path: Path) -> None:
    tree = take_snapshot(str(project(tmp_path / "project")))
    server.open("second")
    ways = [
        server.shell(tmp_path / "r", rsync, name)
        for rsync in (True, False)
        for name in ("a 'c'", "second")
    ]
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(send, shell, tree) for shell in ways * 2]:
            done.result()
    assert os.listdir(tmp_path / "r" / "trees") == [tree.id]
    assert uploaded(ways[0], tree).id == tree.id


# -------------------------------------------------------------------------------- failure


def test_an_interrupted_upload_continues(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "p"
    base.mkdir()
    (base / "first").write_text("small")
    (base / "second").write_bytes(os.urandom(8 << 20))
    tree = take_snapshot(str(base))
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin" / "rsync"
    slow.write_text('#!/bin/sh\nexec /usr/bin/rsync --bwlimit=1m "$@"\n')
    slow.chmod(0o755)
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{path}")
    master, shell = server.open("cut"), server.shell(tmp_path / "r", True, "cut")
    root = Path(shell.root)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send, shell, tree)
        until(lambda: any(file.stat().st_size for file in root.glob("trees/*.part/rest/second.*")))
        master.kill()
        master.wait()
        with pytest.raises(LinkLost, match=r"connection to 127\.0\.0\.1 was lost"):
            sent.result()
    until(lambda: list(root.glob(f"trees/*.part/{tree.id}/second")))
    assert not (root / "trees" / tree.id).exists()
    monkeypatch.setenv("PATH", path)
    os.unlink(shell.transport.key)
    server.open("cut")
    (part,) = root.glob("trees/*.part")
    first = os.stat(part / tree.id / "first").st_ino
    send(shell, tree)
    assert uploaded(shell, tree).id == tree.id
    assert os.stat(root / "trees" / tree.id / "first").st_ino == first
    assert os.listdir(root / "trees") == [tree.id]


@pytest.mark.parametrize("rsync", [True, False])
def test_a_transfer_without_a_connection_opens_none(
    server: Server, tmp_path: Path, rsync: bool
) -> None:
    shell = server.shell(tmp_path / "r", rsync, "no such socket")
    log = (server.base / "log").read_bytes()
    tree = take_snapshot(str(project(tmp_path / "project")))
    with pytest.raises(LinkLost, match=r"connection to 127\.0\.0\.1 was lost"):
        send(shell, tree)
    with pytest.raises(LinkLost, match=r"connection to 127\.0\.0\.1 was lost"):
        download(shell, str(tmp_path / "project"), b"big\n", str(tmp_path / "into"))
    assert os.listdir(tmp_path / "into") == []
    assert (server.base / "log").read_bytes() == log


@pytest.mark.parametrize("rsync", [True, False])
def test_a_full_disk_is_reported_and_left_unchanged(
    server: Server, tmp_path: Path, rsync: bool
) -> None:
    require("mount", "umount")
    if os.getuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "small", disk], check=True)
    try:
        shell = server.shell(disk / "r", rsync)
        tree = take_snapshot(str(project(tmp_path / "project")))
        with pytest.raises(
            CarryError, match=r"disk of 127.0.0.1 is full; free some space"
        ) as caught:
            send(shell, tree)
        assert not isinstance(caught.value, LinkLost)
        assert os.listdir(disk / "r" / "trees") == []
        with pytest.raises(CarryError, match=r"disk of .*/disk/i is full|to .*/disk/i: No space"):
            download(server.shell(tmp_path / "r", rsync), str(tmp_path / "project"), None,
                  str(disk / "i"))  # fmt: skip
        assert not (disk / "i" / "big").exists()
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_directory_that_cannot_be_created_is_named(shell: RemoteShell, tmp_path: Path) -> None:
    (tmp_path / "it's there").write_text("a file is in the way")
    (tmp_path / "p").mkdir()
    with pytest.raises(CarryError, match=r"files could not be transferred .*mkdir.*s there"):
        send(shell, take_snapshot(str(tmp_path / "p")))


def test_output_of_a_login_script_does_no_harm(tmp_path: Path) -> None:
    noise = tmp_path / "noise"
    noise.write_text("echo welcome to this machine; printf there\n")
    with serving(f"SetEnv BASH_ENV={noise}\n") as server:
        shell = server.shell(tmp_path / "r", rsync=True)
        tree = take_snapshot(str(project(tmp_path / "project")))
        send(shell, tree)
        assert uploaded(shell, tree).id == tree.id
        download(shell, f"{shell.root}/trees/{tree.id}", None, str(tmp_path / "into"))
        assert take_snapshot(str(tmp_path / "into"), exclude=["dangling"]).names == tuple(
            name for name in tree.names if name != "dangling"
        )


# ------------------------------------------------------------------------------- fetching


def test_everything_is_downloaded(shell: RemoteShell, tmp_path: Path) -> None:
    tree = take_snapshot(str(project(tmp_path / "project")), exclude=["dangling"])
    download(shell, tree.base, None, str(tmp_path / "deep" / "into"))
    received = take_snapshot(str(tmp_path / "deep" / "into"))
    assert received.names == tree.names
    assert received.id == tree.id
    for name in ("run.sh", "shared", "a b"):
        mode = (tmp_path / "deep" / "into" / name).stat().st_mode
        assert mode == (tmp_path / "project" / name).stat().st_mode


def test_named_files_are_downloaded_and_missing_ones_skipped(
    shell: RemoteShell, tmp_path: Path
) -> None:
    base, into = project(tmp_path / "project"), tmp_path / "into"
    wanted = [*ODD, "run.sh"]
    for names in ("\n".join(["gone", *wanted]), "\0".join([*(f"./{x}" for x in wanted), "gone"])):
        download(shell, str(base), names.encode(), str(into))
        assert set(take_snapshot(str(into)).names) == set(wanted)
        assert (into / "a b").read_text() == "file 0\n"
        assert os.access(into / "run.sh", os.X_OK)
    download(shell, str(base), b"empty\ngone\n", str(into))
    assert (into / "empty" / "inside").is_dir()
    download(shell, str(base), b"gone\n", str(tmp_path / "nothing"))
    download(shell, str(base), b"", str(tmp_path / "nothing"))
    assert os.listdir(tmp_path / "nothing") == []


@pytest.mark.parametrize("listed", [True, False])
def test_excluded_files_are_not_downloaded(
    shell: RemoteShell, tmp_path: Path, listed: bool
) -> None:
    base = tmp_path / "project"
    for name in ("a.log", "keep.txt", "cache/deep/x.txt", "sub/cache", "sub/b.log"):
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text("")
    names = b"a.log\nkeep.txt\ncache/deep/x.txt\nsub/cache\nsub/b.log\n" if listed else None
    download(shell, str(base), names, str(tmp_path / "into"), exclude=["*.log", "cache/"])
    assert take_snapshot(str(tmp_path / "into")).names == ("keep.txt", "sub/cache")


def test_a_newer_file_replaces_the_old_one(shell: RemoteShell, tmp_path: Path) -> None:
    base, into = tmp_path / "project", tmp_path / "into"
    for directory, text in ((base, "new and longer"), (into, "old")):
        directory.mkdir()
        (directory / "file").write_text(text)
    (into / "other").write_text("mine")
    with (into / "file").open() as reader:
        download(shell, str(base), None, str(into))
        assert reader.read() == "old", "whoever has it open keeps what it has"
    assert (into / "file").read_text() == "new and longer"
    assert (into / "other").read_text() == "mine"


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret", "a/../../secret"])
def test_a_name_outside_is_rejected(shell: RemoteShell, tmp_path: Path, name: str) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "secret").write_text("")
    with pytest.raises(CarryError, match="would be outside"):
        download(shell, str(tmp_path / "project"), name.encode(), str(tmp_path / "into"))
    assert os.listdir(tmp_path / "into") == []


def test_links_that_lead_outside_are_skipped_and_local_ones_not_followed(
    shell: RemoteShell, tmp_path: Path
) -> None:
    base, into, outside = tmp_path / "project", tmp_path / "into", tmp_path / "outside"
    for directory in (base / "sub", into, outside):
        directory.mkdir(parents=True)
    (base / "sub" / "file").write_text("x")
    (base / "sub" / "inside").symlink_to("../sub/file")
    (base / "up").symlink_to("../outside")
    (base / "etc").symlink_to("/etc")
    download(shell, str(base), None, str(into))
    assert set(take_snapshot(str(into)).names) == {"sub/file", "sub/inside"}
    (into / "sub" / "file").unlink()
    (into / "sub").rename(into / "moved")
    (into / "sub").symlink_to(outside)
    with pytest.raises(CarryError, match="'sub' is a symbolic link"):
        download(shell, str(base), None, str(into))
    assert os.listdir(outside) == []
    assert (into / "sub").is_symlink()


def test_absolute_links_into_the_same_directory_become_relative(
    shell: RemoteShell, tmp_path: Path
) -> None:
    base, into = tmp_path / "project", tmp_path / "into"
    (base / "sub").mkdir(parents=True)
    (base / "file").write_text("x")
    (base / "sub" / "own").symlink_to(base / "file")
    (base / "sub" / "etc").symlink_to("/etc")
    remark = download(
        shell, str(base), None, str(into), workspace=AttemptWorkspace(work="/project")
    )
    assert remark == "the link sub/etc points outside the job directory and was not fetched"
    assert os.readlink(into / "sub" / "own") == "../file"
    assert os.listdir(into / "sub") == ["own"]


def test_a_changed_result_with_the_same_size_and_second_is_downloaded(
    shell: RemoteShell, tmp_path: Path
) -> None:
    base, into = tmp_path / "project", tmp_path / "into"
    for directory, text in ((base, "its"), (into, "our")):
        directory.mkdir()
        (directory / "r.csv").write_text(text)
        os.utime(directory / "r.csv", (1_600_000_000, 1_600_000_000))
    remark = download(
        shell, str(base), b"r.csv\n", str(into), workspace=AttemptWorkspace("12", since=0.0)
    )
    assert remark == "r.csv was changed locally; the job's version is r.csv.12"
    assert {path.name: path.read_text() for path in into.iterdir()} == {
        "r.csv": "our", "r.csv.12": "its"
    }  # fmt: skip


def test_a_missing_directory_is_named(shell: RemoteShell, tmp_path: Path) -> None:
    for names in (None, b"x\n"):
        with pytest.raises(CarryError, match=r"files could not be transferred .*no such place"):
            download(shell, str(tmp_path / "no such place"), names, str(tmp_path / "into"))


# -------------------------------------------------------------------------- hostile archives


def archive(*members: tuple[str, bytes, str]) -> bytes:
    """A tar of (name, kind, content or target)."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, kind, text in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(text)
            else:
                info.linkname = text
            tar.addfile(info, io.BytesIO(text.encode()))
    return data.getvalue()


FILE, LINK, HARD, PIPE, DIRECTORY = (
    tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE
)  # fmt: skip


def test_an_archive_is_unpacked(tmp_path: Path) -> None:
    data = archive(("./", DIRECTORY, ""), ("./a", FILE, "x"), ("b/c", FILE, "y"), ("d", HARD, "a"),
                   ("e", LINK, "b/c"), ("f/g", DIRECTORY, ""), ("p", PIPE, ""))  # fmt: skip
    for _ in range(2):  # over existing files
        unpack(data, str(tmp_path / "into"))
        tree = take_snapshot(str(tmp_path / "into"))
        assert tree.names == ("a", "b/c", "d", "e", "f/g")
        assert tree.links == ("e",)
        assert (tmp_path / "into" / "d").read_text() == "x"


@pytest.mark.parametrize(
    "members",
    [
        [("/tmp/sk-absolute", FILE, "x")],
        [("../outside", FILE, "x")],
        [("a/../../outside", FILE, "x")],
        [("a", HARD, "../secret")],
        [("a", HARD, "/etc/passwd")],
        [("a", LINK, "b"), ("b", DIRECTORY, ""), ("a/x", FILE, "x")],
        [("a", FILE, ""), ("a/x", FILE, "x")],
        [("..", DIRECTORY, "")],
    ],
)
def test_an_archive_that_reaches_outside_is_rejected(
    members: list[tuple[str, bytes, str]], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("mine")
    with pytest.raises(CarryError, match="cannot unpack into"):
        unpack(archive(*members), str(tmp_path / "into"))
    assert set(os.listdir(tmp_path)) == {"secret", "into"}
    assert not os.path.exists("/tmp/sk-absolute")
    assert not (tmp_path / "into" / "b" / "x").exists()


@pytest.mark.parametrize("target", ["..", "/tmp", "x/../..", "../into/../.."])
def test_a_link_that_leads_out_of_an_archive_is_skipped_and_never_followed(
    target: str, tmp_path: Path
) -> None:
    unpack(archive(("a", LINK, target), ("a/outside", FILE, "x")), str(tmp_path / "into"))
    assert os.listdir(tmp_path) == ["into"]
    assert (tmp_path / "into" / "a" / "outside").read_text() == "x"
    assert not (tmp_path / "into" / "a").is_symlink()


def test_a_truncated_archive_leaves_no_partial_file(tmp_path: Path) -> None:
    data = archive(("a", FILE, "x"), ("b", FILE, "y" * 5000))
    for broken in (data[:3000], b"garbage" * 1000):
        with pytest.raises(CarryError, match="a complete tar archive"):
            unpack(broken, str(tmp_path / "into"))
        assert set(os.listdir(tmp_path / "into")) <= {"a"}


def test_concurrent_unpacking_does_not_mix(tmp_path: Path) -> None:
    texts = [letter * 100_000 for letter in "ab"]
    start = threading.Barrier(2)

    def work(text: str) -> None:
        start.wait(20)
        for _ in range(5):
            unpack(archive(("d/file", FILE, text)), str(tmp_path / "into"))

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work, text) for text in texts]:
            done.result()
    assert (tmp_path / "into" / "d" / "file").read_text() in texts
    assert os.listdir(tmp_path / "into" / "d") == ["file"]
