"""Ways to run many short jobs on one Slurm cluster, each job on one GPU."""

import contextlib
import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks import install
from benchmarks.home import Home, missing
from benchmarks.lab import Broken, clean_environment, run

SUBMITIT, HYPERQUEUE = "submitit==1.5.4", "hyperqueue==0.27.0"
PILOTS = "stoker, pilots"
GPUS_PER_NODE = 2
POLL_SECONDS = 0.2
LIMIT_SECONDS = 900.0

PROGRAM = """
import subprocess, sys
import submitit

folder, jobs, command = sys.argv[1:]
executor = submitit.AutoExecutor(folder=folder, cluster="slurm")
executor.update_parameters(
    timeout_min=30, slurm_array_parallelism=int(jobs), slurm_partition="gpu",
    slurm_additional_parameters={"gres": "gpu:1"},
)
executor.map_array(subprocess.check_call, [["sh", "-c", command]] * int(jobs))
"""

HYPERQUEUE_PROGRAM = """
import os, sys
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig

jobs, command = int(sys.argv[1]), sys.argv[2]
index, count = (int(os.environ[f"SLURM_ARRAY_TASK_{name}"]) for name in ("ID", "COUNT"))
with LocalCluster(worker_config=WorkerConfig(cores=1)) as cluster:
    job = Job(max_fails=0)
    for _ in range(index, jobs, count):
        job.program(["sh", "-c", command], stdout=None, stderr=None)
    client = cluster.client()
    client.wait_for_jobs([client.submit(job)])
"""


@dataclass(frozen=True)
class Bed:
    """The cluster, and the directory of one run."""

    cluster: Any
    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its commands; jobs have the same home directory."""
        home = {"HOME": str(self.directory), "SHELL": "/bin/sh"}
        return {**clean_environment(), **self.cluster.environment, **home}

    def command(self, *words: str | Path) -> str:
        """Run a command; return its output."""
        return run(list(words), directory=self.directory, env=self.environment).output

    def wait(self) -> None:
        """Wait until the cluster has no jobs."""
        deadline = time.monotonic() + LIMIT_SECONDS
        states = "--states=PENDING,RUNNING,CONFIGURING,COMPLETING"
        while self.command("squeue", "--noheader", states, "-o", "%A").strip():
            if time.monotonic() > deadline:
                raise Broken("the cluster still has jobs")
            time.sleep(POLL_SECONDS)


class SlurmPeer(ABC):
    """One way; only `run` is timed."""

    name: ClassVar[str]
    max_jobs: ClassVar[int] = 40
    """Jobs of a run that takes some seconds."""

    def prepare(self, cache: Path) -> str | None:
        """Install it once; return why it is missing, or None."""
        return None

    @contextlib.contextmanager
    def opened(self, bed: Bed, nodes: int) -> Iterator[None]:
        """Have what exists before a user submits: a daemon, but no allocation."""
        yield

    @abstractmethod
    def run(self, bed: Bed, command: str, jobs: int, node: str = "") -> None:
        """Run a command many times, on one node only if it is given; return when all ended."""


class Stoker(SlurmPeer):
    """A daemon with the cluster as its only node with GPUs."""

    options: ClassVar[tuple[str, ...]] = ()
    home: Home

    def prepare(self, cache: Path) -> str | None:
        return missing(cache)

    @contextlib.contextmanager
    def opened(self, bed: Bed, nodes: int) -> Iterator[None]:
        self.home = Home(bed.directory)
        self.home.environment |= {**bed.environment, "STOKER_HOME": str(self.home.path)}
        words = [word.format(nodes=nodes) for word in self.options]
        try:
            self.home.stoker("daemon", "start")
            self.home.stoker("nodes", "add", "lab", "slurm://", *words, "--", "-p", "gpu")
            yield
        finally:
            self.home.stop()

    def run(self, bed: Bed, command: str, jobs: int, node: str = "") -> None:
        self.home.stoker("submit", "--gpus", "1", "--array", f"1-{jobs}", "--wrap", command)
        self.home.stoker("wait", "last", limit=LIMIT_SECONDS)


class Pilots(Stoker):
    """Allocations are requested after the submission."""

    name = PILOTS
    max_jobs = 1000
    options = ("--pilot", "gpus=2 cores=2 time=60m max={nodes} idle=5m")


class HandOver(Stoker):
    """One Slurm job per attempt."""

    name = "stoker, handed over"


class SbatchArray(SlurmPeer):
    """One call of sbatch."""

    name = "sbatch --array"
    max_jobs = 1000

    def run(self, bed: Bed, command: str, jobs: int, node: str = "") -> None:
        bed.command(*sbatch(node), f"--array=1-{jobs}", "--wrap", command)
        bed.wait()


class SbatchLoop(SlurmPeer):
    """One call of sbatch for each job."""

    name = "sbatch in a loop"

    def run(self, bed: Bed, command: str, jobs: int, node: str = "") -> None:
        for _ in range(jobs):
            bed.command(*sbatch(node), "--wrap", command)
        bed.wait()


def sbatch(node: str) -> list[str]:
    """Return the start of a command line of sbatch."""
    words = ["sbatch", "--quiet", "-p", "gpu", "--gres=gpu:1", "-o", "/dev/null"]
    return [*words, f"--nodelist={node}"] if node else words


class Submitit(SlurmPeer):
    """An array of Python functions that run the command: it has no other kind of job."""

    name = "submitit, map_array"
    place: Path | None = None

    def prepare(self, cache: Path) -> str | None:
        self.place = install.environment(cache, SUBMITIT)
        return None if self.place else f"cannot be installed: pip install {SUBMITIT}"

    def run(self, bed: Bed, command: str, jobs: int, node: str = "") -> None:
        assert self.place is not None
        folder = bed.directory / "submitit"
        bed.command(self.place / "bin/python", "-c", PROGRAM, folder, str(jobs), command)
        bed.wait()


class HyperQueue(SlurmPeer):
    """A server with one worker in an allocation of each GPU, which has its share of the jobs.

    Its automatic allocation cannot be run: allocations would call the program `hq`, which the
    package does not have, and its Python interface neither adds a queue of allocations nor starts
    a worker of a server elsewhere.
    """

    name = "HyperQueue, a server per GPU"
    place: Path | None = None

    def prepare(self, cache: Path) -> str | None:
        self.place = install.environment(cache, HYPERQUEUE)
        return None if self.place else f"cannot be installed: pip install {HYPERQUEUE}"

    def run(self, bed: Bed, command: str, jobs: int, node: str = "") -> None:
        assert self.place is not None
        gpus = GPUS_PER_NODE * len(bed.cluster.nodes)
        program = bed.directory / "peer.py"
        program.write_text(HYPERQUEUE_PROGRAM)
        words = [str(self.place / "bin/python"), str(program), str(jobs), command]
        bed.command(*sbatch(node), f"--array=0-{gpus - 1}", "--wrap", shlex.join(words))
        bed.wait()
        if bed.command("squeue", "--noheader", "--states=FAILED", "-o", "%A").strip():
            raise Broken("a server of HyperQueue failed")


def all_peers() -> list[SlurmPeer]:
    """Return all ways, stoker's first."""
    return [Pilots(), HandOver(), SbatchArray(), SbatchLoop(), Submitit(), HyperQueue()]
