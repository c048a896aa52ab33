"""Real users of the machine, made by useradd and removed again."""

import contextlib
import fcntl
import os
import pwd
import re
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

LOCK = "/var/tmp/stoker-test-users.lock"
PREFIX = "sk"
"""Names of test users: sk, the pid of the test process, a word."""


class User(NamedTuple):
    """A user of the machine."""

    name: str
    uid: int
    gid: int
    home: Path

    def environment(self) -> dict[str, str]:
        """Return the variables of a login."""
        return {
            "HOME": str(self.home), "USER": self.name, "LOGNAME": self.name, "SHELL": "/bin/sh",
            "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8",
        }  # fmt: skip

    def groups(self) -> list[int]:
        return os.getgrouplist(self.name, self.gid)

    def popen(
        self, *args: object, env: Mapping[str, str] | None = None, **options: object
    ) -> "subprocess.Popen[str]":
        """Start a command as this user, in its home, with the environment of a login."""
        return subprocess.Popen(
            [str(arg) for arg in args],
            user=self.uid, group=self.gid, extra_groups=self.groups(), umask=0o022,
            env={**self.environment(), **(env or {})},
            **{"cwd": self.home, "text": True, "start_new_session": True, **options},
        )  # fmt: skip

    def run(
        self,
        *args: object,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 60,
        check: bool = False,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command as this user; return its output and exit code."""
        pipe = subprocess.PIPE
        stdin = subprocess.DEVNULL if input is None else pipe
        command = [str(arg) for arg in args]
        options = {"stdin": stdin, "stdout": pipe, "stderr": pipe, "cwd": cwd or self.home}
        process = self.popen(*command, env=env, **options)
        try:
            out, err = process.communicate(input, timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        if check and process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, out, err)
        return subprocess.CompletedProcess(command, process.returncode, out, err)


@contextlib.contextmanager
def account_lock() -> Iterator[None]:
    """Hold the lock of all test processes: useradd does not wait for another one."""
    with open(LOCK, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def name_of(word: str) -> str:
    """Return the name of a user of this test process."""
    return f"{PREFIX}{os.getpid()}{word}"


def add_user(word: str, homes: Path, *options: str) -> User:
    """Create a user with a private home below `homes` and a group of its own."""
    name = name_of(word)
    home = homes / word
    with account_lock():
        command = ["useradd", "--user-group", "--no-create-home", "--no-log-init"]
        login = ["--home-dir", str(home), "--shell", "/bin/sh"]
        subprocess.run([*command, *login, *options, name], check=True, capture_output=True)
    entry = pwd.getpwnam(name)
    home.mkdir(mode=0o700)
    os.chown(home, entry.pw_uid, entry.pw_gid)
    return User(name, entry.pw_uid, entry.pw_gid, home)


def remove_user(name: str) -> None:
    """Kill the processes of a user and remove it and its group."""
    with contextlib.suppress(KeyError):
        end_processes(pwd.getpwnam(name).pw_uid)
    with account_lock():
        subprocess.run(["userdel", "--force", name], check=False, capture_output=True)
        subprocess.run(["groupdel", name], check=False, capture_output=True)


def end_processes(uid: int) -> None:
    """Kill every process of `uid`, and return when none is left but zombies."""
    for _ in range(100):
        found = list(processes(uid))
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                process = os.pidfd_open(pid)
                os.kill(pid, signal.SIGKILL)
                select.select([process], [], [], 10)
                os.close(process)
    raise AssertionError(f"uid {uid} still has processes: {list(processes(uid))}")


def processes(uid: int) -> Iterator[int]:
    """Yield the processes of `uid` that are not zombies."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{entry}/status").read_text()
                real = re.search(r"^Uid:\s(\d+)", status, re.MULTILINE)
                state = re.search(r"^State:\s(\w)", status, re.MULTILINE)
                if real and int(real[1]) == uid and state and state[1] not in "ZX":
                    yield int(entry)


def remove_leftovers() -> None:
    """Remove users of test processes that were killed."""
    for entry in pwd.getpwall():
        match = re.fullmatch(rf"{PREFIX}(\d+)[a-z]+", entry.pw_name)
        if match and not os.path.exists(f"/proc/{match[1]}"):
            remove_user(entry.pw_name)
