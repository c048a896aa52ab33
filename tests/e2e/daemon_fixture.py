"""A machine of one's own: a home, its real daemon, and short words for what tests do to it."""

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
PATIENCE = 30.0
LEFT = pytest.StashKey[Path]()
"""What a test leaves outside of its home, to be removed after it."""


def until(what: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Look again and again until there is something, or time is up."""
    deadline = time.monotonic() + seconds
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def state_of(pid: int) -> str:
    """The kernel's letter for a process; X when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def alive(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    return state_of(pid) not in "XZ"


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to one process; a deadly one is waited for."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(handle, number)
            if number == signal.SIGKILL:
                assert select.select([handle], [], [], 10)[0], f"{pid} does not die"
        finally:
            os.close(handle)


def children_named(name: str, home: Path) -> list[int]:
    """Processes of this name whose environment or descriptors belong to this home."""
    token = os.fsencode(home)
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            named = entry.isdigit() and Path(f"/proc/{entry}/comm").read_text().strip() == name
            if named and token in Path(f"/proc/{entry}/environ").read_bytes():
                found.append(int(entry))
    return found


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
        """Where claims lie."""
        return Path(places.run_dir())

    @property
    def lock_pid(self) -> int | None:
        """Who holds the state, even if it does not answer yet."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.state / "lock").read_text())
        return None

    def crash(self) -> None:
        """Kill the daemon outright."""
        kill(self.pid)

    def up(self) -> "DaemonFixture":
        """Have a daemon again."""
        done = self.stoker("daemon", "start")
        assert done.returncode == 0, done.stderr
        return self

    def answers(self) -> bool:
        """Whether a daemon is there."""
        try:
            return bool(self.client.daemon())
        except DaemonUnreachable:
            return False

    def pid_of(self, job: str) -> int:
        """The process of a job, as soon as it is known."""
        return int(until(lambda: self.job(job)["pid"]))

    @property
    def keepers(self) -> list[int]:
        """The keepers of this home, oldest first.

        A job that is being started is called like its keeper for a moment; it has no exit log.
        """
        found = children_named("stoker-superv", self.home)
        return sorted(pid for pid in found if (self.state / "exits" / str(pid)).exists())

    @property
    def log(self) -> str:
        """What daemons have said."""
        return Path(places.daemon_log()).read_text()

    # -- jobs ---------------------------------------------------------------------------

    def submit(self, *args: object, **more: Any) -> str:
        """Queue something; return its label."""
        done = self.stoker("submit", *args, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def refused(self, *args: object, **more: Any) -> "tuple[int, str]":
        """Try to queue something; return the exit code and the sentence."""
        done = self.stoker("submit", *args, **more)
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1, done.stderr
        return done.returncode, done.stderr

    def job(self, label: object) -> dict[str, Any]:
        """A job as the API shows it."""
        found: dict[str, Any] = self.client.jobs([str(label)])["jobs"][0]
        return found

    def jobs(self, selector: object) -> list[dict[str, Any]]:
        """Jobs as the API shows them, by id."""
        found = self.client.jobs([str(selector)], limit=100_000)["jobs"]
        return sorted(found, key=lambda job: int(job["id"]))

    def states(self, selector: object) -> list[str]:
        """The states of jobs, by id."""
        return [job["state"] for job in self.jobs(selector)]

    def becomes(self, label: object, *states: str) -> dict[str, Any]:
        """Wait until a job is in one of these states."""

        def there() -> dict[str, Any] | None:
            job = self.job(label)
            assert job["state"] in states or job["state"] not in FINISHED, job
            return job if job["state"] in states else None

        found: dict[str, Any] = until(there)
        return found

    def end_of(self, label: object, seconds: float = PATIENCE) -> dict[str, Any]:
        """Wait for a job's end."""
        done = self.client.wait([str(label)], timeout=seconds)
        assert done["finished"], done
        return self.job(label)

    def output(self, label: object) -> str:
        """What a job wrote."""
        return Path(self.job(label)["log"]).read_text()

    def says(self, label: object, text: str) -> str:
        """Wait until a job's output holds a text."""

        def there() -> str:
            path = Path(self.job(label)["log"])
            found = path.read_text() if path.exists() else ""
            return found if text in found else ""

        found: str = until(there)
        return found

    def result(self, *args: object, **more: Any) -> dict[str, Any]:
        """Queue something and wait for its end."""
        return self.end_of(self.submit(*args, **more))

    def script(self, name: str, text: str) -> Path:
        """A file in the user's directory."""
        path = self.user / name
        path.write_text(text)
        return path

    def gpus(self) -> dict[str, dict[str, Any]]:
        """The GPUs by id."""
        return {gpu["id"]: gpu for gpu in self.client.gpus()["gpus"]}

    def popen(self, *args: object, **more: Any) -> "subprocess.Popen[bytes]":
        """The command, running beside the test."""
        more.setdefault("stdin", subprocess.DEVNULL)
        more.setdefault("stdout", subprocess.PIPE)
        more.setdefault("stderr", subprocess.PIPE)
        more.setdefault("cwd", self.user)
        command = [sys.executable, "-m", "stoker", *map(str, args)]
        return subprocess.Popen(command, env={**os.environ, **more.pop("env", {})}, **more)


def as_json(done: "subprocess.CompletedProcess[str]") -> Any:
    """What a command with --json said."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
