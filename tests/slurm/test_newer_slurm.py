"""The contract of executors, and failures, with Slurm 24.11."""

from collections.abc import Iterator

import pytest

from conftest import require
from e2e.daemon_fixture import until
from slurm.newer_slurm import TOOLS, NewerSlurm
from slurm.slurm_cluster import SlurmCluster
from slurm.test_contract import TestHandover, TestPilot, job
from slurm.test_failures import (
    test_a_killed_daemon_finds_its_pilot_and_the_job_in_it,
    test_a_killed_relay_loses_nothing,
)
from slurm.test_handover import (
    test_a_queued_attempt_shows_what_slurm_says_and_can_be_cancelled,
    test_an_attempt_of_a_killed_batch_job_is_lost,
    test_an_attempt_that_slurm_preempts_runs_again,
    test_what_no_node_has_fails_in_the_words_of_sbatch,
)

__all__ = [
    "TestHandover",
    "TestPilot",
    "job",
    "test_a_killed_daemon_finds_its_pilot_and_the_job_in_it",
    "test_a_killed_relay_loses_nothing",
    "test_a_queued_attempt_shows_what_slurm_says_and_can_be_cancelled",
    "test_an_attempt_of_a_killed_batch_job_is_lost",
    "test_an_attempt_that_slurm_preempts_runs_again",
    "test_what_no_node_has_fails_in_the_words_of_sbatch",
]

pytestmark = pytest.mark.proof


@pytest.fixture(scope="session")
def shared_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A cluster of the newer Slurm."""
    require(*TOOLS)
    base = tmp_path_factory.mktemp("slurm")
    cluster = SlurmCluster(base, services=[NewerSlurm(base)])
    try:
        yield cluster
    finally:
        cluster.close()


def test_the_cluster_is_a_newer_slurm(shared_slurm: SlurmCluster) -> None:
    shared_slurm.run("sbatch", "--job-name=seven", "--wrap", "exit 7")
    format = ("squeue", "-h", "-n", "seven", "-t", "FAILED", "-O", "exit_code")
    code = until(lambda: shared_slurm.run(*format).strip())
    assert code == "7:0"  # 1792 in Slurm 22.05
    assert shared_slurm.run("sbatch", "--version").startswith("slurm-wlm 24.11")
