"""simple-gpu-scheduler: commands on stdin, one GPU each; it always uses /bin/sh."""

from pathlib import Path

from benchmarks import install
from benchmarks.lab import run
from benchmarks.peers import Peer, Work

REQUIREMENT = "simple-gpu-scheduler==0.1.4"


class SimpleGpuScheduler(Peer):
    """The original package, in a separate environment."""

    name = "simple-gpu-scheduler (/bin/sh)"
    keeps_logs = False
    durable = "none"
    place: Path | None = None

    def prepare(self, cache: Path) -> str | None:
        self.place = install.environment(cache, REQUIREMENT)
        return None if self.place else f"cannot be installed: pip install {REQUIREMENT}"

    def run(self, work: Work) -> None:
        assert self.place is not None
        devices = ",".join(map(str, range(work.slots)))
        run(
            [self.place / "bin/simple_gpu_scheduler", "--gpus", devices],
            directory=work.directory,
            stdin=work.lines,
            merged=True,
        )
