"""Compared programs that run a file of commands, four at a time; one module each."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.lab import Broken


@dataclass(frozen=True)
class Work:
    """Equal commands as files in the two formats that peers read, and a log directory."""

    directory: Path
    command: str
    jobs: int
    slots: int = 4

    @property
    def lines(self) -> Path:
        """Return the file with one command per line."""
        return self.directory / "commands.txt"

    @property
    def logged_lines(self) -> Path:
        """Return the file whose commands write their own logs, for peers without logs."""
        return self.directory / "logged-commands.txt"

    @property
    def logs(self) -> Path:
        """Return the log directory, one file per job."""
        return self.directory / "logs"

    def write(self) -> None:
        """Write the files."""
        self.logs.mkdir()
        numbers = range(self.jobs)
        self.lines.write_text("".join(f"{self.command}\n" for _ in numbers), encoding="utf-8")
        self.logged_lines.write_text(
            "".join(f"{{ {self.command}; }} > {self.logs}/{n}.log 2>&1\n" for n in numbers),
            encoding="utf-8",
        )


class Peer(ABC):
    """A program that runs the work; only `run` is timed."""

    name: ClassVar[str]
    keeps_logs: ClassVar[bool]
    durable: ClassVar[str]

    def prepare(self, cache: Path) -> str | None:
        """Install the program once; return why it is missing, or None."""
        return None

    def set_up(self, work: Work) -> None:  # noqa: B027 - most need nothing
        """Prepare what may exist before the measurement."""

    @abstractmethod
    def run(self, work: Work) -> None:
        """Do all the work, including start-up."""

    def seconds(self, work: Work, began: float, measured: float) -> float:
        """Return the measured time, unless the peer has a better measure.

        `began` is the wall clock when `run` was called.
        """
        return measured

    def check(self, work: Work) -> None:
        """Raise `Broken` unless every job left its log."""
        if self.keeps_logs:
            expect_files(work.logs, work.jobs)

    def tear_down(self, work: Work) -> None:  # noqa: B027 - most leave nothing
        """Stop what `set_up` or `run` started."""


def expect_files(directory: Path, count: int, pattern: str = "*") -> None:
    """Raise `Broken` unless there are exactly `count` files."""
    found = sum(1 for path in directory.rglob(pattern) if path.is_file())
    if found != count:
        raise Broken(f"{found} log files for {count} jobs in {directory.name}")


def all_peers() -> list[Peer]:
    """Return all peers, the lower bound first."""
    from benchmarks.peers.gnu_parallel import GnuParallel
    from benchmarks.peers.hyperqueue import HyperQueue, HyperQueueToLastLog
    from benchmarks.peers.simple_gpu_scheduler import SimpleGpuScheduler
    from benchmarks.peers.slurm import Slurm
    from benchmarks.peers.stoker_compat import StokerCompat
    from benchmarks.peers.stoker_feed import StokerFeed
    from benchmarks.peers.stoker_queue import StokerQueue, StokerQueueWarm
    from benchmarks.peers.task_spooler import TaskSpooler
    from benchmarks.peers.xargs import BareXargs, Floor

    return [
        Floor(),
        StokerFeed(),
        StokerCompat(),
        StokerQueue(),
        StokerQueueWarm(),
        BareXargs(),
        SimpleGpuScheduler(),
        TaskSpooler(),
        HyperQueue(),
        HyperQueueToLastLog(),
        GnuParallel(),
        Slurm(),
    ]
