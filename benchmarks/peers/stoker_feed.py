"""`stoker feed`: commands on stdin, in the foreground, with a new home each time."""

from pathlib import Path

from benchmarks.home import Home, missing
from benchmarks.lab import run
from benchmarks.peers import Peer, Work


class StokerFeed(Peer):
    """Runs the commands without a daemon before or after."""

    name = "stoker feed"
    keeps_logs = True
    durable = "journal fsynced per batch of lines; exits within 50 ms"

    def prepare(self, cache: Path) -> str | None:
        return missing(cache)

    def run(self, work: Work) -> None:
        home = Home(work.directory)
        devices = ",".join(map(str, range(work.slots)))
        run(
            home.argv("feed", "--gpus", devices),
            directory=work.directory,
            env=home.environment,
            stdin=work.lines,
        )

    def check(self, work: Work) -> None:
        Home(work.directory).expect_logs(work.jobs)

    def tear_down(self, work: Work) -> None:
        Home(work.directory).stop()
