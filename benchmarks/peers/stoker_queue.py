"""The durable queue: one bulk submission, then wait for all jobs."""

from pathlib import Path

from benchmarks.home import Home, missing
from benchmarks.peers import Peer, Work


class StokerQueue(Peer):
    """The start of the daemon is included in the time."""

    name = "stoker queue, daemon start included"
    keeps_logs = True
    durable = "journal fsynced per submission; exits within 50 ms"

    def prepare(self, cache: Path) -> str | None:
        return missing(cache)

    def run(self, work: Work) -> None:
        home = Home(work.directory)
        home.start(work.slots)
        home.stoker("submit", "--gpus", "1", "--each-line", str(work.lines))
        home.stoker("wait", "last")

    def check(self, work: Work) -> None:
        Home(work.directory).expect_logs(work.jobs)

    def tear_down(self, work: Work) -> None:
        Home(work.directory).stop()


class StokerQueueWarm(StokerQueue):
    """With a running daemon."""

    name = "stoker queue, daemon already up"

    def set_up(self, work: Work) -> None:
        Home(work.directory).start(work.slots)

    def run(self, work: Work) -> None:
        home = Home(work.directory)
        home.stoker("submit", "--gpus", "1", "--each-line", str(work.lines))
        home.stoker("wait", "last")
