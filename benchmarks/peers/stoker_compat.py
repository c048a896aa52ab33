"""stoker's `simple_gpu_scheduler` with the shell of the original."""

from benchmarks.home import Home, program
from benchmarks.lab import run
from benchmarks.peers import Work
from benchmarks.peers.stoker_feed import StokerFeed


class StokerCompat(StokerFeed):
    """Runs the commands and shows their output."""

    name = "stoker simple_gpu_scheduler (/bin/sh)"
    durable = "journal written per turn, fsynced within 50 ms"

    def run(self, work: Work) -> None:
        home = Home(work.directory)
        run(
            [program("simple_gpu_scheduler"), "--gpus", *map(str, range(work.slots))],
            directory=work.directory,
            env={**home.environment, "SHELL": "/bin/sh"},
            stdin=work.lines,
            merged=True,
        )
