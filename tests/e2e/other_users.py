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
    """A user account that is removed after the test."""
    name = f"sk{os.getpid()}"
    subprocess.run(["useradd", "--no-create-home", name], check=True, timeout=30)
    try:
        yield pwd.getpwnam(name)
    finally:
        subprocess.run(["userdel", name], check=False, timeout=30)


class OtherUser:
    """Another user with a home and daemons of their own, and the same stand-in driver."""

    def __init__(self, user: pwd.struct_passwd, nvml: FakeNvml, directory: Path) -> None:
        self.user, self.directory = user, directory
        self.command, environment = stoker_as(user)
        for file in (nvml.library / "libnvidia-ml.so.1", nvml.file):
            shutil.copy(file, directory)
        self.home = directory / "home"
        self.home.mkdir()
        (self.home / "config.toml").write_text("[foreign]\nleave_seconds = 0\n")
        for path in (directory, *directory.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid)
        self.environment = {
            **environment, "HOME": str(directory), "SHELL": "/bin/sh",
            "STOKER_HOME": str(self.home),
            "LD_LIBRARY_PATH": str(directory), "FAKE_NVML": str(directory / nvml.file.name),
        }  # fmt: skip

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a program as this user."""
        return subprocess.run(
            [*words], user=self.user.pw_uid, group=self.user.pw_gid, extra_groups=[],
            env=self.environment, cwd=self.directory, capture_output=True, text=True, timeout=30,
            check=False, stdin=subprocess.DEVNULL, umask=0o077,
        )  # fmt: skip

    def stoker(self, *args: str) -> "subprocess.CompletedProcess[str]":
        """Run stoker as this user."""
        return self.run(*self.command, *args)


@contextlib.contextmanager
def other_user(nvml: FakeNvml) -> Iterator[OtherUser]:
    """Another user of this host; the user's daemon ends with the test."""
    with another_user() as user, tempfile.TemporaryDirectory(prefix="sk-", dir="/tmp") as name:
        them = OtherUser(user, nvml, Path(name))
        try:
            yield them
        finally:
            them.stoker("daemon", "stop", "--cancel")


def as_user(uid: int, call: Callable[[], str]) -> str:
    """Call a function in a process of another user; return its result."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(uid)
            result = call()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            result = type(error).__name__
        os.write(write, result.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with open(read) as file:
        return file.read()


def stoker_as(user: pwd.struct_passwd) -> tuple[list[str], dict[str, str]]:
    """Return command and environment with which another user can run this stoker."""
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
