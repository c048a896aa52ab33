"""One STOKER_HOME under test: its commands, its daemon and supervisors, found and ended by pid."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lab import clean_environment
from stoker import places

COMMAND_SECONDS = 60.0
"""How long one command may take before it counts as hanging."""
DAEMON, SUPERVISOR, OTHER = "daemon", "supervisor", "other"


def boot_time() -> float:
    """Return the clock that the jobs' records use."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Installation:
    """A home directory with its daemon. Every process is checked to be of this home."""

    def __init__(
        self,
        directory: Path,
        environment: Mapping[str, str] | None = None,
        user: int | None = None,
        devices: Path | None = None,
        command: Sequence[str] = (sys.executable, "-m", "stoker"),
    ) -> None:
        """Make the directories; `user` runs it, and its jobs lock devices in `devices`."""
        self.directory, self.user, self.command = directory, user, command
        self.home, self.work = directory / "home", directory / "work"
        self.records, self.devices = directory / "records", devices or directory / "devices"
        for path in (directory, self.home, self.work, self.records, self.devices):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.environment = {
            **clean_environment(),
            **(environment or {}),
            "STOKER_HOME": str(self.home),
            "HOME": str(self.work),
            "SHELL": "/bin/sh",
        }
        self.environment.pop("XDG_RUNTIME_DIR", None)
        with _environment(self.environment):
            self.state = Path(places.state_dir())
            self.run_dir = Path(places.run_dir())
            self.logs = Path(places.logs_dir())
            self.socket = Path(places.socket_path())
            self.journal = Path(places.journal_path())
            self.log = Path(places.daemon_log())
        if user is not None:  # only now: a home of another user is refused
            for path in (directory, self.home, self.work, self.records):
                os.chown(path, user, user)

    # -- commands -----------------------------------------------------------------------

    def popen(self, *words: str, stdin: bytes | None = None) -> "subprocess.Popen[bytes]":
        """Start a command beside the campaign; its output goes to files that outlive it."""
        number = time.monotonic_ns()
        out = self.directory / f"client.{number}"
        with (
            contextlib.ExitStack() as stack,
            open(f"{out}.out", "wb") as stdout,
            open(f"{out}.err", "wb") as stderr,
        ):
            source: Any = subprocess.DEVNULL
            if stdin is not None:
                Path(f"{out}.in").write_bytes(stdin)
                source = stack.enter_context(open(f"{out}.in", "rb"))
            process = subprocess.Popen(
                [*self.command, *words],
                stdin=source, stdout=stdout, stderr=stderr, cwd=self.work,
                env=self.environment, start_new_session=True, user=self.user, group=self.user,
                extra_groups=None if self.user is None else [],
            )  # fmt: skip
        process.args = [str(out), *words]
        return process

    def stoker(self, *words: str, limit: float = COMMAND_SECONDS) -> tuple[int, str, str]:
        """Run a command to its end; return its code, its output and its messages."""
        process = self.popen(*words)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = -1
        return code, *printed(process)

    def up(self, seconds: float = 120.0) -> None:
        """Start the daemon if none answers."""
        deadline = time.monotonic() + seconds
        while True:
            code, _, said = self.stoker("daemon", "start")
            if code == 0:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"no daemon within {seconds:g} s: {said.strip()}")
            time.sleep(0.2)

    def wait_for_daemon(self, seconds: float) -> bool:
        """Return True as soon as a daemon answers, False if none does within this time."""
        deadline = time.monotonic() + seconds
        if not self.processes(DAEMON):
            self.popen("daemon", "start")
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(self.socket))
                return True
            time.sleep(0.03)
        return False

    def jobs(self) -> dict[int, dict[str, Any]]:
        """Return every job that the daemon knows, by id."""
        found: dict[int, dict[str, Any]] = {}
        # In this order: a job that ends in between is in both, and not in neither.
        for command in ("queue", "history"):
            code, out, said = self.stoker(command, "--json", "--limit", "100000")
            if code:
                raise RuntimeError(f"stoker {command}: {said.strip()}")
            found |= {int(job["id"]): job for job in json.loads(out)["jobs"]}
        return found

    # -- processes ----------------------------------------------------------------------

    def processes(self, role: str) -> list[int]:
        """Return the living processes of this home in one role, oldest first."""
        found = {pid: (parent, role) for pid, parent, role in self._all()}
        daemons = {pid for pid, (_, each) in found.items() if each == DAEMON}
        # A supervisor that has just been forked still has the daemon's name.
        roles = {
            pid: SUPERVISOR if pid in daemons and parent in daemons else each
            for pid, (parent, each) in found.items()
        }
        # A job that is being started is called like its supervisor until it is executed.
        return sorted(
            pid
            for pid, each in roles.items()
            if each == role and roles.get(found[pid][0]) != SUPERVISOR
        )

    def _all(self) -> Iterator[tuple[int, int, str]]:
        token = f"STOKER_HOME={self.home}".encode()
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            with contextlib.suppress(OSError):
                place = Path("/proc", name)
                if token not in (place / "environ").read_bytes().split(b"\0"):
                    continue
                letter, parent = (place / "stat").read_text().rpartition(")")[2].split()[:2]
                if letter not in "XZ":
                    yield int(name), int(parent), _role((place / "comm").read_text(), place)

    def signal(self, pid: int, number: int) -> bool:
        """Send a signal to a process of this home; a deadly one is waited for."""
        token = f"STOKER_HOME={self.home}".encode()
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        try:
            if token not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return False
            signal.pidfd_send_signal(handle, number)
            if number == signal.SIGKILL:
                select.select([handle], [], [], 10)
        except OSError:
            return False
        else:
            return True
        finally:
            os.close(handle)

    def leftovers(self) -> list[str]:
        """Describe processes of this home that are no daemon, supervisor, helper or command."""
        found = []
        token = os.fsencode(self.directory)
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            place = Path("/proc", name)
            with contextlib.suppress(OSError):
                environment = (place / "environ").read_bytes().split(b"\0")
                of_a_job = any(word.startswith(b"STOKER_TOKEN=") for word in environment)
                works_here = os.fsencode(os.readlink(place / "cwd")).startswith(
                    os.fsencode(self.work)
                )
                mentions = any(token in word for word in environment)
                if not (of_a_job and mentions) and not (works_here and not mentions):
                    continue
                if (place / "stat").read_text().rpartition(")")[2].split()[0] in "XZ":
                    continue
                command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                job = [word.decode() for word in environment if word.startswith(b"STOKER_JOB_ID=")]
                found.append(f"pid {name} {' '.join(job)} {command.strip()}")
        return found

    def events_of(self, job: int) -> list[str]:
        """Return the journalled events that concern a job, as text."""
        import sqlite3

        found = []
        with contextlib.suppress(sqlite3.Error):
            db = sqlite3.connect(f"file:{self.journal}?mode=ro", uri=True)
            with contextlib.closing(db):
                for seq, data in db.execute("SELECT seq, data FROM events ORDER BY seq"):
                    event = json.loads(data)
                    first = event.get("first", 0)
                    if event.get("job") == job or (
                        isinstance(first, int) and first <= job < first + event.get("count", 0)
                    ):
                        found.append(f"{seq} {bytes(data).decode(errors='replace')[:400]}")
        return found


def _role(comm: str, place: Path) -> str:
    if comm.startswith(("stoker-keeper", "stoker-superv")):
        return SUPERVISOR
    words = (place / "cmdline").read_bytes().split(b"\0")
    return DAEMON if b"stoker.daemon" in words and b"run" in words else OTHER


def printed(process: "subprocess.Popen[bytes]") -> tuple[str, str]:
    """Return what a command of `popen` has printed."""
    assert isinstance(process.args, list)
    out = str(process.args[0])
    return tuple(Path(f"{out}.{end}").read_text(errors="replace") for end in ("out", "err"))  # type: ignore[return-value]


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
