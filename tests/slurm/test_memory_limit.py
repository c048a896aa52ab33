"""Attempts that Slurm ends for lack of memory, by the limits of real cgroups."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ON_CI, require
from e2e.daemon_fixture import DaemonFixture
from slurm.actions import add_cluster, submit
from slurm.slurm_cluster import TOOLS, SlurmCluster
from slurm.test_handover import hand_over

CGROUPS = Path("/sys/fs/cgroup/memory")
CONFIGURATION = """
CgroupPlugin=cgroup/v1
ConstrainRAMSpace=yes
"""
LIMITED = {"TaskPlugin": "task/cgroup"}
# tail keeps a line until it has ended.
HOG = "echo begun; head -c 400M /dev/zero | tail -n 1 >/dev/null; exit $?"


@pytest.fixture(scope="module")
def shared_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A cluster that enforces memory limits."""
    require(*TOOLS)
    if not os.access(CGROUPS / "cgroup.procs", os.W_OK):
        why = "Slurm 22.05 needs the memory controller of cgroup v1 here, and root"
        (pytest.fail if ON_CI else pytest.skip)(why)
    base = tmp_path_factory.mktemp("slurm")
    (base / "cgroup.conf").write_text(CONFIGURATION)
    # Slurm names cgroups after nodes: those of other clusters on this host have other names.
    node = f"m{os.getpid()}"
    cluster = SlurmCluster(base, nodes=[node], settings=LIMITED)
    try:
        yield cluster
    finally:
        cluster.close()
        for directory, _, _ in os.walk(CGROUPS / f"slurm_{node}", topdown=False):
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(directory)


def test_a_handed_over_attempt_that_exceeds_its_memory_is_out_of_memory(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    hand_over(idle)
    job = submit(idle, HOG, "--mem", "100M")
    assert idle.end_of(job)["state"] == "OUT_OF_MEMORY"
    assert idle.output(job).startswith("begun\n")


def test_an_attempt_that_exceeds_the_memory_of_its_pilot_is_out_of_memory(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    add_cluster(idle, pilot="gpus=2 cores=2 mem=100M time=30m idle=60s")
    job = submit(idle, HOG)
    assert idle.end_of(job)["state"] == "OUT_OF_MEMORY"
    after = submit(idle, "exit 5")
    assert idle.end_of(after)["result"] == 5
