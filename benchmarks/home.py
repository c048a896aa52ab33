"""Home: a temporary STOKER_HOME with its commands and its daemon."""

import contextlib
import json
import os
import select
import signal
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import install
from benchmarks.lab import REPOSITORY, Broken, Outcome, clean_environment, run


@cache
def program(name: str) -> Path:
    """Return a program of stoker's wheel, which is built and installed once per run."""
    return _programs() / name


@cache
def _programs() -> Path:
    return install.stoker(REPOSITORY / ".bench")


def missing(directory: Path) -> str | None:
    """Return why stoker cannot be measured; None if it can."""
    try:
        run([program("stoker"), "--help"], directory=directory, limit=30)
    except Broken as error:
        return str(error)
    return None


class Home:
    """Directory with the daemon, state and logs of one measurement."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "home"
        self.environment = {**clean_environment(), "STOKER_HOME": str(self.path)}

    def argv(self, *words: str) -> list[str]:
        """Return the command line of a stoker command."""
        return [str(program("stoker")), *words]

    def stoker(self, *words: str, limit: float = 300, check: bool = True) -> Outcome:
        """Run a stoker command in this home."""
        return run(
            self.argv(*words),
            directory=self.directory,
            env=self.environment,
            limit=limit,
            check=check,
        )

    def start(self, devices: int) -> None:
        """Start the daemon with declared devices."""
        self.stoker("daemon", "start", "--gpus", ",".join(map(str, range(devices))))

    def status(self) -> dict[str, Any]:
        """Return `stoker daemon status --json`."""
        found: dict[str, Any] = json.loads(self.stoker("daemon", "status", "--json").output)
        return found

    def socket(self) -> Path:
        """Return the socket of the daemon."""
        return Path(str(self.status()["socket"]))

    def pid(self) -> int | None:
        """Return the pid of the daemon, None if none runs."""
        try:
            return int(self.status()["pid"])
        except (Broken, ValueError, KeyError, TypeError):
            return None

    def stop(self) -> None:
        """Stop the daemon and its jobs; kill what remains."""
        pid = self.pid() if self.path.exists() else None
        if pid is None:
            return
        try:
            daemon = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            with contextlib.suppress(Broken):
                self.stoker("daemon", "stop", "--cancel", limit=60, check=False)
            for insist in (signal.SIGTERM, signal.SIGKILL):
                if select.select([daemon], [], [], 10)[0]:
                    break
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(daemon, insist)
        finally:
            os.close(daemon)

    def expect_logs(self, jobs: int) -> None:
        """Raise `Broken` unless every job left a log under this home."""
        found = sum(1 for _ in self.path.rglob("*.out"))
        if found != jobs:
            raise Broken(f"{found} log files for {jobs} jobs in stoker's home")


def resident_megabytes(pid: int) -> float:
    """Return the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise Broken(f"process {pid} has no VmRSS")


def process_tree(pid: int) -> list[int]:
    """Return a process and its descendants: helper processes are part of the cost."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, children.read_text(encoding="utf-8").split())
    return found


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and its threads, in nanoseconds if possible."""
    try:
        tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
        used = [int(task.read_text(encoding="utf-8").split()[0]) for task in tasks]
        if used:
            return sum(used) / 1e9
    except OSError:
        pass  # a kernel without schedstat: use the coarser ticks
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
