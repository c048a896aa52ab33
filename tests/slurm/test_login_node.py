"""A Slurm cluster behind a login node, without a shared file system."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import require
from e2e.daemon_fixture import DaemonFixture, kill
from slurm.actions import add_cluster, nodes
from slurm.login_node import TOOLS, LoginNode
from slurm.slurm_cluster import SlurmCluster
from slurm.test_failures import relays
from ssh.ssh_cluster import require_namespaces


@pytest.fixture
def login(
    slurm: SlurmCluster, idle: DaemonFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LoginNode]:
    """A login node, for a daemon that has no other way to Slurm."""
    require(*TOOLS)
    require_namespaces()
    login = LoginNode(idle.home.parent / "login", slurm)
    monkeypatch.setenv("PATH", login.path)
    monkeypatch.delenv("SLURM_CONF")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    try:
        yield login
    finally:
        login.close()


def test_files_logs_and_results_go_through_a_login_node(
    login: LoginNode, slurm: SlurmCluster, idle: DaemonFixture, tmp_path: Path
) -> None:
    slurm.set_home(tmp_path)
    add_cluster(idle, "--ssh", "login", "--", "-p", "gpu")
    (idle.user / "data").write_text("input\n")
    line = "cat data; pwd; echo output >result; until [ -e $HOME/go ]; do sleep 0.05; done; exit 3"
    job = int(idle.submit("--gpus", "1", "--wrap", line))
    output = idle.says(job, "/.stoker/work/").split()
    assert output[0] == "input"
    assert output[1].startswith(str(tmp_path))
    for pid in relays(idle):
        kill(pid)
    (tmp_path / "go").touch()
    ended = idle.end_of(job)
    assert (ended["result"], ended["node"]) == (3, "lab-1")
    assert (idle.user / "result").read_text() == "output\n"
    assert nodes(idle)["lab-1"]["shared"] is False
