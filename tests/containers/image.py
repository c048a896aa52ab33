"""A podman of the suites' own: its storage is temporary, its image made from this Python.

Nothing is fetched from anywhere. All workers of a test run share it; the last one removes it.
"""

import contextlib
import fcntl
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture

IMAGE = "py:test"
PROGRAMS = ("sh", "cat", "env", "id", "kill", "ls", "mkdir", "rm", "sleep", "touch")
LEFT_OUT = re.compile(
    r"/(test|tests|idlelib|ensurepip|lib2to3|tkinter|turtledemo|pydoc_data|site-packages"
    r"|dist-packages|__pycache__|config-[^/]*)(/|$)|\.a$|/_tkinter\."
)
ENGINE = """\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
netns = "{network}"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""
STORAGE = """\
[storage]
driver = "{driver}"
graphroot = "{base}/root"
runroot = "{base}/run"
"""
BRIDGE = Path("/sys/class/net/cni-podman0/brif")
"""What hangs on the network that podman makes when it is first needed."""
OWN = b"WHERE = 'in the image'\n"


class Podman:
    """An engine with one image."""

    def __init__(self, base: Path) -> None:
        self.base = base

    @property
    def environment(self) -> dict[str, str]:
        """What makes a podman this one. Without a network, which takes most of a start."""
        return self._with("engine.conf")

    @property
    def networked(self) -> dict[str, str]:
        """The same with the engine's usual network."""
        return self._with("network.conf")

    def _with(self, engine: str) -> dict[str, str]:
        storage = str(self.base / "storage.conf")
        return {
            "CONTAINERS_CONF": str(self.base / engine),
            "CONTAINERS_STORAGE_CONF": storage,
            "CONTAINERS_REGISTRIES_CONF": str(self.base / "registries.conf"),
            "STOKER_CONTAINER_ENGINE": "podman",
        }

    def run(self, *words: str, seconds: float = 50, input: str | None = None) -> str:
        """What a command of it says."""
        done = subprocess.run(
            ["podman", *words],
            env={**os.environ, **self.environment},
            input=input,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def containers(self, box: DaemonFixture) -> list[str]:
        """The names of all containers of a home, whatever became of them."""
        names = self.run("ps", "--all", "--format", "{{.Names}}").split()
        return [name for name in names if (box.state / "install").read_text() in name]

    def make(self) -> None:
        """Set it up, with its image."""
        if BRIDGE.exists():
            (self.base / "bridge").touch()
        for name, network in (("engine", "none"), ("network", "bridge")):
            (self.base / f"{name}.conf").write_text(ENGINE.format(network=network))
        (self.base / "registries.conf").write_text("unqualified-search-registries = []\n")
        pack(self.base / "image.tar")
        for driver in ("overlay", "vfs"):  # not every file system can be laid over
            text = STORAGE.format(driver=driver, base=self.base)
            (self.base / "storage.conf").write_text(text)
            try:
                self.run(
                    "import", "--change", "ENV PATH=/usr/local/bin:/usr/bin:/bin",
                    "--change", "ENV PYTHONPATH=/srv/own", str(self.base / "image.tar"), IMAGE,
                )  # fmt: skip
                self.run("run", "--rm", IMAGE, "python3", "-c", "")
                break
            except AssertionError:
                if driver == "vfs":
                    raise
                self.clear()
        (self.base / "image.tar").unlink()

    def clear(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.run("rm", "--all", "--force", "--time", "0")
        for mount in ("root/overlay", "root"):
            subprocess.run(["umount", self.base / mount], capture_output=True, check=False)
        for part in ("root", "run"):
            shutil.rmtree(self.base / part, ignore_errors=True)


def pack(path: Path) -> None:
    """A root file system with this interpreter, its library and a few programs."""
    prefix = os.path.realpath(sys.base_prefix)
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = os.path.realpath(Path(prefix, "bin", name))
    library = sysconfig.get_path("stdlib", vars={"installed_base": prefix, "base": prefix})
    files = [
        os.path.join(directory, file)
        for directory, _, names in os.walk(os.path.realpath(library))
        for file in names
        if not LEFT_OUT.search(os.path.join(directory, file))
    ]
    programs = {each: os.path.realpath(found) for each in PROGRAMS if (found := shutil.which(each))}
    with tarfile.open(path, "w") as archive:
        for each in ("tmp", "proc", "sys", "dev", "root", "etc"):
            directory = tarfile.TarInfo(each)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o1777 if each == "tmp" else 0o755
            archive.addfile(directory)
        binaries = [python, *programs.values(), *(each for each in files if each.endswith(".so"))]
        for each in sorted({*files, *binaries}):
            archive.add(each, each.lstrip("/"), recursive=False)
        for soname in libraries_of(binaries):
            archive.add(os.path.realpath(soname), soname.lstrip("/"), recursive=False)
        links = {"usr/local/bin/python3": python, "usr/local/bin/python": python}
        links |= {f"usr/local/bin/{each}": program for each, program in programs.items()}
        for link, target in (links | {"bin/sh": programs["sh"]}).items():
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            if f"/{link}" != target:
                archive.addfile(entry)
        own = tarfile.TarInfo("srv/own/own.py")
        own.size = len(OWN)
        archive.addfile(own, io.BytesIO(OWN))


def libraries_of(binaries: list[str]) -> set[str]:
    """The shared libraries that they need, under the names that the loader looks for."""
    said = subprocess.run(
        ["ldd", *binaries], capture_output=True, text=True, check=False, timeout=50
    ).stdout
    return set(re.findall(r"(?:=>\s+)?(/\S+)\s+\(0x", said))


@contextlib.contextmanager
def shared(base: Path, lock: Path) -> Iterator[Podman]:
    """The engine of this test run: made by the first that asks, removed by the last that leaves."""
    podman = Podman(base)
    with changing(base, lock) as users:
        if not users:
            podman.make()
        users.append(os.getpid())
    try:
        yield podman
    finally:
        with changing(base, lock) as users:
            users.remove(os.getpid())
            if not users:
                podman.clear()
                if BRIDGE.exists() and not (base / "bridge").exists() and not any(BRIDGE.iterdir()):
                    subprocess.run(["ip", "link", "delete", BRIDGE.parent.name], check=False)
                shutil.rmtree(base, ignore_errors=True)


@contextlib.contextmanager
def changing(base: Path, lock: Path) -> Iterator[list[int]]:
    """Who uses it, while nobody else can change that."""
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        base.mkdir(exist_ok=True)
        path = base / "users"
        users = [int(each) for each in path.read_text().split()] if path.exists() else []
        yield users
        if base.exists():
            path.write_text(" ".join(map(str, users)))


@pytest.fixture(scope="session")
def podman(testrun_uid: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """A real podman with an image of this very Python."""
    from conftest import require

    require("podman", "runc")
    temporary = tmp_path_factory.getbasetemp()
    lock = (temporary.parent if "PYTEST_XDIST_WORKER" in os.environ else temporary) / "podman.lock"
    with shared(Path(f"/tmp/sk-podman-{testrun_uid[:12]}"), lock) as found:
        yield found
