"""HyperQueue: server and one worker in a Python process, through its Python API."""

from pathlib import Path

from benchmarks import install
from benchmarks.lab import run, shell
from benchmarks.peers import Peer, Work

REQUIREMENT = "hyperqueue==0.27.0"

PROGRAM = """
import sys
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig

lines, logs, slots, shell = sys.argv[1:]
job = Job(max_fails=None)
with open(lines) as commands:
    for number, line in enumerate(commands):
        # one file for both streams would be opened twice: stderr is dropped, the cheaper way
        job.program([shell, "-c", line.rstrip()], stdout=f"{logs}/{number}.log", stderr=None)
with LocalCluster(worker_config=WorkerConfig(cores=int(slots))) as cluster:
    client = cluster.client()
    submitted = client.submit(job)
    if not client.wait_for_jobs([submitted]):
        sys.exit("a task failed")
"""


class HyperQueue(Peer):
    """`LocalCluster` of the package, in a separate environment."""

    name = "HyperQueue LocalCluster"
    keeps_logs = True
    durable = "none"
    place: Path | None = None

    def prepare(self, cache: Path) -> str | None:
        self.place = install.environment(cache, REQUIREMENT)
        return None if self.place else f"cannot be installed: pip install {REQUIREMENT}"

    def run(self, work: Work) -> None:
        assert self.place is not None
        python = self.place / "bin/python"
        run(
            [python, "-c", PROGRAM, work.lines, work.logs, str(work.slots), shell()],
            directory=work.directory,
        )


class HyperQueueToLastLog(HyperQueue):
    """HyperQueue timed until the log of its last job appears.

    `wait_for_jobs` asks once a second, so the whole call takes up to a second longer than the
    work. Users wait for the call; a comparison of schedulers should know both figures.
    """

    name = "HyperQueue LocalCluster, to its last log"

    def seconds(self, work: Work, began: float, measured: float) -> float:
        return max(log.stat().st_mtime for log in work.logs.iterdir()) - began
