"""Slurm, if a cluster is running: an array over all its slots.

A limit of four at a time (`%4`) would make it wait for its own scheduling interval after
every four jobs: several times slower, and not a usual set-up.
"""

import shutil
from pathlib import Path

from benchmarks.lab import Broken, run, shell
from benchmarks.peers import Peer, Work


class Slurm(Peer):
    """The existing cluster of the host."""

    name = "Slurm array (all its slots)"
    keeps_logs = True
    durable = "state saved every few seconds"

    def prepare(self, cache: Path) -> str | None:
        if not shutil.which("sbatch"):
            return "no sbatch here; measured only where a cluster is already running"
        try:
            run(["sinfo"], directory=cache, limit=15)
        except Broken as error:
            return str(error)
        return None

    def run(self, work: Work) -> None:
        script = work.directory / "array.sh"
        script.write_text(f"#!{shell()}\n{work.command}\n", encoding="utf-8")
        array = f"--array=1-{work.jobs}"
        run(
            ["sbatch", "--wait", "--quiet", array, f"--output={work.logs}/%a.log", script],
            directory=work.directory,
        )
