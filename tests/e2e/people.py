"""Other users of this machine."""

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
