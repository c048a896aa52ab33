"""Fixtures of the Slurm suites: the cluster, and a daemon home that uses it."""

from collections.abc import Iterator

import pytest

from conftest import require, stop_daemon
from e2e.conftest import idle
from e2e.daemon_fixture import DaemonFixture
from slurm.slurm_cluster import TOOLS, SlurmCluster

__all__ = ["idle"]


@pytest.fixture(scope="session")
def shared_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """One cluster for all tests of this process."""
    require(*TOOLS)
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def slurm(
    shared_slurm: SlurmCluster, idle: DaemonFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmCluster]:
    """The cluster, for the daemon of this test; its jobs are cancelled after the test."""
    for name, value in shared_slurm.environment.items():
        monkeypatch.setenv(name, value)
    shared_slurm.set_home(idle.user)
    try:
        yield shared_slurm
    finally:
        stop_daemon(idle.home.parent)
        shared_slurm.cancel_all()
