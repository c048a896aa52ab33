"""The programs that run a file of commands, four at a time: one small file each."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.lab import Broken


@dataclass(frozen=True)
class Work:
    """Equal commands, as files in the two shapes that peers read, and a place for logs."""

    directory: Path
    command: str
    jobs: int
    slots: int = 4

    @property
    def lines(self) -> Path:
        """One command per line."""
        return self.directory / "commands.txt"

    @property
    def logged_lines(self) -> Path:
        """The same, each sent to a log file of its own: for peers that keep no logs."""
        return self.directory / "logged-commands.txt"

    @property
    def logs(self) -> Path:
        """Where logs go, one file per job."""
        return self.directory / "logs"

    def write(self) -> None:
        """Put the files there."""
        self.logs.mkdir()
        numbers = range(self.jobs)
        self.lines.write_text("".join(f"{self.command}\n" for _ in numbers), encoding="utf-8")
        self.logged_lines.write_text(
            "".join(f"{{ {self.command}; }} > {self.logs}/{n}.log 2>&1\n" for n in numbers),
            encoding="utf-8",
        )


class Peer(ABC):
    """One way to run the work. Only `run` is timed."""

    name: ClassVar[str]
    keeps_logs: ClassVar[bool]
    durable: ClassVar[str]

    def prepare(self, cache: Path) -> str | None:
        """Install what is needed, once; else say why this peer is missing."""
        return None

    def set_up(self, work: Work) -> None:  # noqa: B027 - most need nothing
        """What is allowed to be there beforehand."""

    @abstractmethod
    def run(self, work: Work) -> None:
        """Do the whole work, start-up included."""

    def seconds(self, work: Work, began: float, measured: float) -> float:
        """What counts: the measured time, unless the peer has a better witness.

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
    """Raise `Broken` unless there are exactly so many files."""
    found = sum(1 for path in directory.rglob(pattern) if path.is_file())
    if found != count:
        raise Broken(f"{found} log files for {count} jobs in {directory.name}")


def all_peers() -> list[Peer]:
    """Every peer, the floor first."""
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
