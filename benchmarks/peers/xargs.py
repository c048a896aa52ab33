"""xargs: nothing but fork and exec, so the least that anybody can need."""

from pathlib import Path

from benchmarks import install
from benchmarks.lab import run, shell
from benchmarks.peers import Peer, Work


def xargs(work: Work, lines: Path) -> None:
    """Each line by the shell, so many at a time."""
    slots = str(work.slots)
    run(
        ["xargs", "-d", "\\n", "-n", "1", "-P", slots, shell(), "-c"],
        directory=work.directory,
        stdin=lines,
    )


class Floor(Peer):
    """Fork, exec of the shell, one log file: what every other peer is measured against."""

    name = "xargs -P, a log per job (floor)"
    keeps_logs = True
    durable = "none"

    def prepare(self, cache: Path) -> str | None:
        return install.program("xargs", "findutils")

    def run(self, work: Work) -> None:
        xargs(work, work.logged_lines)


class BareXargs(Floor):
    """The same without the log file."""

    name = "xargs -P"
    keeps_logs = False

    def run(self, work: Work) -> None:
        xargs(work, work.lines)
