"""Tools that call Slurm's commands, unmodified: Snakemake, dask-jobqueue, a launcher of Hydra.

And what Lightning reads from the environment of a job that sbatch submitted.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from frameworks.bench import BIN, PATIENCE, PROGRAMS, Bench

SNAKEFILE = """
rule all:
    input: "sum.txt"

rule one:
    output: "out/{i}.txt"
    resources: mem_mb=50, runtime=5
    shell: "echo {wildcards.i} $SLURM_ARRAY_TASK_ID > {output}"

rule total:
    input: expand("out/{i}.txt", i=range(3))
    output: "sum.txt"
    resources: mem_mb=50, runtime=5
    shell: "cat {input} > {output}"
"""


class SlurmBench:
    """Commands of the frameworks, with Slurm's commands first on PATH."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.user = bench, bench.user

    def run(self, *words: object) -> str:
        """Run a command with Slurm's commands; return its output."""
        done = subprocess.run(
            [sys.executable, "-m", "stoker", "compat", "slurm", "--", *map(str, words)],
            env={**os.environ, **self.bench.environment}, cwd=self.user, capture_output=True,
            text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def program(self, name: str) -> Path:
        """Return one of the programs of these suites."""
        return PROGRAMS / f"slurm_{name}.py"


@pytest.fixture
def slurm(bench: Bench) -> SlurmBench:
    return SlurmBench(bench)


def test_snakemake_submits_an_array_and_a_job(slurm: SlurmBench) -> None:
    (slurm.user / "Snakefile").write_text(SNAKEFILE)
    slurm.run(
        BIN / "snakemake", "--executor", "slurm", "--jobs", 4, "--slurm-array-jobs", "one",
        "--slurm-init-seconds-before-status-checks", 1, "--seconds-between-status-checks", 1,
        "--latency-wait", 5,
    )  # fmt: skip
    lines = (slurm.user / "sum.txt").read_text().split("\n")[:-1]
    outputs, ids = zip(*(line.split() for line in lines), strict=True)
    assert outputs == ("0", "1", "2")
    assert sorted(ids) == ["1", "2", "3"]  # in which order they are submitted is up to Snakemake
    jobs = slurm.run("squeue", "-h", "-t", "all", "-o", "%i %t").split("\n")[:-1]
    assert jobs == ["1_1 CD", "1_2 CD", "1_3 CD", "4 CD"]


def test_dask_starts_a_worker(slurm: SlurmBench) -> None:
    assert slurm.run(BIN / "python", slurm.program("dask")) == "42\n"
    view = slurm.bench.box.end_of("1", PATIENCE)
    assert (view["name"], view["state"]) == ("dask-worker", "CANCELLED")


def test_hydras_submitit_launcher(slurm: SlurmBench) -> None:
    launcher = (
        "-m",
        "hydra/launcher=submitit_slurm",
        "+x=1,2",
        "hydra.sweep.dir=sweep",
        "hydra.job.chdir=true",
    )
    options = ("hydra.launcher.timeout_min=5", "hydra.launcher.cpus_per_task=1")
    slurm.run(BIN / "python", slurm.program("hydra"), *launcher, *options)
    results = [(slurm.user / "sweep" / str(index) / "result").read_text() for index in (0, 1)]
    assert results == ["1 0\n", "2 1\n"]


def test_lightning_reads_the_tasks_of_a_job(slurm: SlurmBench) -> None:
    script = slurm.user / "job.sh"
    script.write_text(
        "#!/bin/sh\n#SBATCH --nodes=1 --ntasks-per-node=2 -J lit -o out.txt\n"
        f"srun -l {BIN / 'python'} {slurm.program('lightning')}\n"
    )
    slurm.run("sbatch", "--wait", script)
    lines = sorted((slurm.user / "out.txt").read_text().splitlines())
    assert lines == [f"{rank}: 2 {rank} {rank} 0 1 lit True" for rank in (0, 1)]
