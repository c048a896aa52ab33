"""A home with a real daemon, and actions of tests on it."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker import places
from stoker.client.client import Client
from stoker.client.errors import DaemonUnreachable

Run = Callable[..., "subprocess.CompletedProcess[str]"]
FINISHED = {
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "DEADLINE",
}  # fmt: skip
TIMEOUT_SECONDS = 30.0
LEFT = pytest.StashKey[Path]()
"""Directories outside of a test's home, removed after the test."""


def until(condition: Callable[[], Any], seconds: float = TIMEOUT_SECONDS) -> Any:
    """Call repeatedly until the result is true, and return it; fail after a timeout."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        time.sleep(0.02)


def state_of(pid: int) -> str:
    """Return the kernel's state letter of a process; X if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    return state_of(pid) not in "XZ"


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to one process; after SIGKILL wait for its end."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(handle, number)
            if number == signal.SIGKILL:
                assert select.select([handle], [], [], 10)[0], f"{pid} does not die"
        finally:
            os.close(handle)


def children_named(name: str, home: Path) -> list[int]:
    """Return processes of this name with this home in their environment or descriptors."""
    token = os.fsencode(home)
    pids = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            named = entry.isdigit() and Path(f"/proc/{entry}/comm").read_text().strip() == name
            if named and token in Path(f"/proc/{entry}/environ").read_bytes():
                pids.append(int(entry))
    return pids


class DaemonFixture:
    """The command line, the client and the daemon of one home."""

    def __init__(self, home: Path, stoker: Run) -> None:
        self.home, self.stoker = home, stoker
        self.user = home.parent / "user"
        self.client = Client()

    # -- the daemon ---------------------------------------------------------------------

    def start(self, resources: str = "{gpu:4,cpu:8}", **more: Any) -> "DaemonFixture":
        """Start a daemon with declared devices."""
        done = self.stoker("daemon", "start", "--resources", resources, **more)
        assert done.returncode == 0, done.stderr
        return self

    @property
    def pid(self) -> int:
        """The pid of the daemon that answers."""
        return int(self.client.daemon()["pid"])

    @property
    def state(self) -> Path:
        """The state directory."""
        return Path(places.state_dir())

    @property
    def run_dir(self) -> Path:
        """The directory of claims."""
        return Path(places.run_dir())

    @property
    def lock_pid(self) -> int | None:
        """The pid of the process that has locked the state, even if it does not answer yet."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.state / "lock").read_text())
        return None

    def crash(self) -> None:
        """Kill the daemon with SIGKILL."""
        kill(self.pid)

    def up(self) -> "DaemonFixture":
        """Start a daemon again."""
        done = self.stoker("daemon", "start")
        assert done.returncode == 0, done.stderr
        return self

    def answers(self) -> bool:
        """Return whether a daemon answers."""
        try:
            return bool(self.client.daemon())
        except DaemonUnreachable:
            return False

    def pid_of(self, job: str) -> int:
        """Wait for the pid of a job; return it."""
        return int(until(lambda: self.job(job)["pid"]))

    @property
    def supervisors(self) -> list[int]:
        """The supervisors of this home, oldest first.

        During its start a job has the process name of its supervisor; it has no exit log.
        """
        pids = children_named("stoker-superv", self.home)
        return sorted(pid for pid in pids if (self.state / "exits" / str(pid)).exists())

    @property
    def log(self) -> str:
        """The log of the daemon."""
        return Path(places.daemon_log()).read_text()

    # -- jobs ---------------------------------------------------------------------------

    def submit(self, *args: object, **more: Any) -> str:
        """Submit a job; return its label."""
        done = self.stoker("submit", *args, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def refused(self, *args: object, **more: Any) -> "tuple[int, str]":
        """Submit a job that is rejected; return the exit code and the message."""
        done = self.stoker("submit", *args, **more)
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1, done.stderr
        return done.returncode, done.stderr

    def job(self, label: object) -> dict[str, Any]:
        """Return the API's view of a job."""
        view: dict[str, Any] = self.client.jobs([str(label)])["jobs"][0]
        return view

    def jobs(self, selector: object) -> list[dict[str, Any]]:
        """Return the API's views of jobs, by id."""
        views = self.client.jobs([str(selector)], limit=100_000)["jobs"]
        return sorted(views, key=lambda job: int(job["id"]))

    def states(self, selector: object) -> list[str]:
        """Return the states of jobs, by id."""
        return [job["state"] for job in self.jobs(selector)]

    def becomes(self, label: object, *states: str) -> dict[str, Any]:
        """Wait until a job is in one of these states; return its view."""

        def view_in_state() -> dict[str, Any] | None:
            job = self.job(label)
            assert job["state"] in states or job["state"] not in FINISHED, job
            return job if job["state"] in states else None

        view: dict[str, Any] = until(view_in_state)
        return view

    def end_of(self, label: object, seconds: float = TIMEOUT_SECONDS) -> dict[str, Any]:
        """Wait for the end of a job; return its view."""
        done = self.client.wait([str(label)], timeout=seconds)
        assert done["finished"], done
        return self.job(label)

    def output(self, label: object) -> str:
        """Return the output of a job."""
        return Path(self.job(label)["log"]).read_text()

    def says(self, label: object, text: str) -> str:
        """Wait until the output of a job contains a text; return the output."""

        def output_with_text() -> str:
            path = Path(self.job(label)["log"])
            text_so_far = path.read_text() if path.exists() else ""
            return text_so_far if text in text_so_far else ""

        output: str = until(output_with_text)
        return output

    def result(self, *args: object, **more: Any) -> dict[str, Any]:
        """Submit a job and wait for its end; return its view."""
        return self.end_of(self.submit(*args, **more))

    def script(self, name: str, text: str) -> Path:
        """Write a file in the user's directory."""
        path = self.user / name
        path.write_text(text)
        return path

    def gpus(self) -> dict[str, dict[str, Any]]:
        """Return the views of the GPUs, by id."""
        return {gpu["id"]: gpu for gpu in self.client.gpus()["gpus"]}

    def popen(self, *args: object, **more: Any) -> "subprocess.Popen[bytes]":
        """Start the command in the background."""
        more.setdefault("stdin", subprocess.DEVNULL)
        more.setdefault("stdout", subprocess.PIPE)
        more.setdefault("stderr", subprocess.PIPE)
        more.setdefault("cwd", self.user)
        command = [sys.executable, "-m", "stoker", *map(str, args)]
        return subprocess.Popen(command, env={**os.environ, **more.pop("env", {})}, **more)


def as_json(done: "subprocess.CompletedProcess[str]") -> Any:
    """Parse the output of a command with --json."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
