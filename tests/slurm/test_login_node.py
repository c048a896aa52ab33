"""A Slurm cluster behind a login node, which has a home directory of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import require
from e2e.daemon_fixture import DaemonFixture, kill, until
from slurm.actions import add_cluster, nodes, relays
from slurm.login_node import TOOLS, LoginNode
from slurm.slurm_cluster import SlurmCluster
from ssh.ssh_cluster import require_namespaces

LINE = "cat data; pwd; echo output >result; until [ -e $HOME/go ]; do sleep 0.05; done; exit 3"


@pytest.fixture
def cluster_home(tmp_path: Path) -> Path:
    """The home directory of the login node and of the nodes of the cluster."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def login(
    slurm: SlurmCluster, idle: DaemonFixture, cluster_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LoginNode]:
    """A login node, for a daemon that has no other way to Slurm."""
    require(*TOOLS)
    require_namespaces()
    login = LoginNode(idle.home.parent / "login", slurm, cluster_home)
    slurm.set_home(cluster_home)
    monkeypatch.setenv("PATH", login.path)
    monkeypatch.delenv("SLURM_CONF")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (idle.user / "data").write_text("input\n")
    try:
        yield login
    finally:
        login.close()


def start_job(idle: DaemonFixture, cluster_home: Path) -> int:
    """Submit a job to the cluster; return its id when it runs, with its files."""
    add_cluster(idle, "--ssh", "login", "--", "-p", "gpu")
    job = int(idle.submit("--gpus", "1", "--wrap", LINE))
    first, directory = idle.says(job, "/.stoker/work/").split()
    assert first == "input"
    assert directory.startswith(str(cluster_home))
    return job


def test_files_logs_and_results_go_through_a_login_node(
    login: LoginNode, idle: DaemonFixture, cluster_home: Path
) -> None:
    job = start_job(idle, cluster_home)
    assert nodes(idle)["lab-1"]["shared"] is False
    assert relays(idle)
    for pid in relays(idle):
        kill(pid)
    (cluster_home / "go").touch()
    ended = idle.end_of(job)
    assert (ended["result"], ended["node"]) == (3, "lab-1")
    assert (idle.user / "result").read_text() == "output\n"


def test_what_an_ended_pilot_left_is_read_on_the_login_node(
    login: LoginNode, slurm: SlurmCluster, idle: DaemonFixture, cluster_home: Path
) -> None:
    job = start_job(idle, cluster_home)
    idle.crash()
    for pid in relays(idle):
        kill(pid)
    (cluster_home / "go").touch()
    records = cluster_home / ".stoker/run"
    until(lambda: [path for path in records.glob("*/*.exit") if "exited" in path.read_text()])
    slurm.run("scancel", slurm.only_job())
    until(lambda: not slurm.jobs())
    idle.up()
    assert idle.end_of(job)["result"] == 3
    assert (idle.user / "result").read_text() == "output\n"
    until(lambda: not list(records.iterdir()))
    assert not list((cluster_home / ".stoker/work").iterdir())


def test_an_attempt_is_handed_over_through_a_login_node(
    login: LoginNode, slurm: SlurmCluster, idle: DaemonFixture, cluster_home: Path
) -> None:
    idle.up()
    done = idle.stoker("nodes", "add", "lab", "slurm://", "--ssh", "login", "--", "-p", "gpu")
    assert done.returncode == 0, done.stderr
    job = int(idle.submit("--gpus", "1", "--wrap", LINE))
    assert idle.says(job, "/.stoker/work/").startswith("input\n")
    (cluster_home / "go").touch()
    assert idle.end_of(job)["result"] == 3
    assert (idle.user / "result").read_text() == "output\n"
