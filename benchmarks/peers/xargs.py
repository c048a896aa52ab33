"""xargs: only fork and exec, the lower bound."""

from pathlib import Path

from benchmarks import install
from benchmarks.lab import run, shell
from benchmarks.peers import Peer, Work


def xargs(work: Work, lines: Path) -> None:
    """Run each line with the shell, several at a time."""
    slots = str(work.slots)
    run(
        ["xargs", "-d", "\\n", "-n", "1", "-P", slots, shell(), "-c"],
        directory=work.directory,
        stdin=lines,
    )


class Floor(Peer):
    """Fork, exec of the shell, one log file: the baseline of all peers."""

    name = "xargs -P, a log per job (floor)"
    keeps_logs = True
    durable = "none"

    def prepare(self, cache: Path) -> str | None:
        return install.program("xargs", "findutils")

    def run(self, work: Work) -> None:
        xargs(work, work.logged_lines)


class BareXargs(Floor):
    """xargs without log files."""

    name = "xargs -P"
    keeps_logs = False

    def run(self, work: Work) -> None:
        xargs(work, work.lines)
