"""GNU parallel in its cheapest set-up with logs: no grouping, output written by the job."""

from pathlib import Path

from benchmarks import install
from benchmarks.lab import clean_environment, run, shell
from benchmarks.peers import Peer, Work


class GnuParallel(Peer):
    """Debian's `parallel`."""

    name = "GNU parallel"
    keeps_logs = True
    durable = "joblog, not fsynced"

    def prepare(self, cache: Path) -> str | None:
        return install.program("parallel", "parallel")

    def run(self, work: Work) -> None:
        run(
            ["parallel", "--will-cite", "--ungroup", "-j", str(work.slots), "--joblog", "joblog"],
            directory=work.directory,
            env={**clean_environment(), "PARALLEL_SHELL": shell(), "HOME": str(work.directory)},
            stdin=work.logged_lines,
        )
