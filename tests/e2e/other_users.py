"""Other users of this machine."""

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.nvml import FakeNvml

SOURCE = Path(__file__).parents[2] / "src"


@contextlib.contextmanager
def another_user() -> Iterator[pwd.struct_passwd]:
    """A user made for a test, gone after it."""
    name = f"sk{os.getpid()}"
    subprocess.run(["useradd", "--no-create-home", name], check=True, timeout=30)
    try:
        yield pwd.getpwnam(name)
    finally:
        subprocess.run(["userdel", name], check=False, timeout=30)


class Neighbour:
    """Another user with a home of their own, whose daemons see the same stand-in driver."""

    def __init__(self, user: pwd.struct_passwd, nvml: FakeNvml, place: Path) -> None:
        self.user, self.place = user, place
        self.command, environment = stoker_as(user)
        for file in (nvml.library / "libnvidia-ml.so.1", nvml.file):
            shutil.copy(file, place)
        self.home = place / "home"
        self.home.mkdir()
        (self.home / "config.toml").write_text("[foreign]\nleave_seconds = 0\n")
        for path in (place, *place.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid)
        self.environment = {
            **environment, "HOME": str(place), "SHELL": "/bin/sh", "STOKER_HOME": str(self.home),
            "LD_LIBRARY_PATH": str(place), "FAKE_NVML": str(place / nvml.file.name),
        }  # fmt: skip

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a program as this user."""
        return subprocess.run(
            [*words], user=self.user.pw_uid, group=self.user.pw_gid, extra_groups=[],
            env=self.environment, cwd=self.place, capture_output=True, text=True, timeout=30,
            check=False, stdin=subprocess.DEVNULL, umask=0o077,
        )  # fmt: skip

    def stoker(self, *args: str) -> "subprocess.CompletedProcess[str]":
        """Run stoker as this user."""
        return self.run(*self.command, *args)


@contextlib.contextmanager
def neighbour(nvml: FakeNvml) -> Iterator[Neighbour]:
    """Another user of this machine, whose daemon ends with the test."""
    with another_user() as user, tempfile.TemporaryDirectory(prefix="sk-", dir="/tmp") as name:
        them = Neighbour(user, nvml, Path(name))
        try:
            yield them
        finally:
            them.stoker("daemon", "stop", "--cancel")


def as_user(uid: int, what: Callable[[], str]) -> str:
    """Do something in a process of another user; return what it says."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(uid)
            said = what()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            said = type(error).__name__
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with open(read) as file:
        return file.read()


def stoker_as(user: pwd.struct_passwd) -> tuple[list[str], dict[str, str]]:
    """The command and environment with which another user can run this stoker."""
    packages = sysconfig.get_path("purelib")
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": f"{SOURCE}:{packages}"}
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, shutil.which(version, path=environment["PATH"])):
        with contextlib.suppress(OSError):
            if python and not subprocess.run(
                [python, "-c", "import msgspec, starlette, uvicorn, stoker"],
                user=user.pw_uid, group=user.pw_gid, extra_groups=[], env=environment, cwd="/",
                capture_output=True, check=False, timeout=30,
            ).returncode:  # fmt: skip
                return [python, "-m", "stoker"], environment
    pytest.skip(f"no {version} here that another user may run")
