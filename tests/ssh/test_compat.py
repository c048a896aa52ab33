"""With an SSH node added, jobs of every compat command run there when the local node is full."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.auto_env import UNTIL_GO, open_auto_env
from compat.grass_env import open_grass_env
from e2e.daemon_fixture import until
from ssh.ssh_cluster import SshCluster

FOREVER = "until [ -e $HOME/go ]; do sleep 0.05; done"


@pytest.fixture
def reach(cluster: SshCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshCluster]:
    """A cluster with a host with two GPUs, reachable from homes created in this test."""
    monkeypatch.setenv("PATH", cluster.environment["PATH"])
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    try:
        yield cluster
    finally:
        cluster.heal()


def test_grs_31_a_queue_has_gpus_of_several_nodes_and_no_local_ones(reach: SshCluster) -> None:
    rich, twin = reach.machine("rich", gpus=2), reach.machine("twin", gpus=2)
    with open_grass_env() as home:
        for name, machine in (("rich", rich), ("twin", twin)):
            added = home.stoker("nodes", "add", name, machine.url, "--key", machine.key)
            assert added.returncode == 0, added.stderr
        assert "have 4 GPUs" in home.refused("create-queue", "q", "--json", "{gpu:5}")
        home.done("create-queue", "q", "--json", "{gpu:4}")
        assert list(home.show("q")["resources"]["gpu"]) == ["rich/0", "rich/1", "twin/0", "twin/1"]
        for gpus in ("2", "3"):
            home.done("create-queue", f"q{gpus}", "--json", f"{{gpu:{gpus}}}")
        print_place = ("--json", "{gpu:2}", "--", "sh", "-c", f"hostname; echo {{gpu}}; {FOREVER}")
        jobs = [int(home.done("enqueue", "q", *print_place)) for _ in range(2)]
        until(lambda: all(home.jobs("q")[id]["status"] == "Running" for id in jobs))
        assert [home.jobs("q")[id]["node"] for id in jobs] == ["rich", "twin"]
        # Only the two GPUs of rich count, although twin has two with the same names.
        third = int(home.done("enqueue", "q2", "--json", "{gpu:1}", "--", "hostname"))
        assert home.jobs("q2")[third]["status"] == "Created"
        assert "3" in home.refused("enqueue", "q3", "--json", "{gpu:3}", "--", "true")
        for machine in (rich, twin):
            reach.ssh(machine, "touch go")
        for id in (*jobs, third):
            home.end(id)
        logs = [Path(home.jobs("q")[id]["log"]).read_text() for id in jobs]
        assert logs == ["rich\n0,1\n", "twin\n0,1\n"]
        assert Path(home.jobs("q2")[third]["log"]).read_text() == "rich\n"
        assert [home.jobs("q2")[third]["node"]] == ["rich"]


def test_aut_44_a_task_is_placed_on_the_node_with_free_gpus(reach: SshCluster) -> None:
    remote = reach.machine("rich", gpus=2)
    with open_auto_env() as home:
        home.serve("--gpus", "0", "1", "--port", "0")
        added = home.run(
            sys.executable, "-m", "stoker", "nodes", "add", "rich", remote.url,
            "--key", remote.key,
        )  # fmt: skip
        assert added.returncode == 0, added.stderr
        local = home.task(UNTIL_GO, "-n", "2")
        assert home.running(local)["node"] != "rich"
        assert home.result("hostname; echo $CUDA_VISIBLE_DEVICES", "-n", "2") == "rich\n0,1\n"
        (home.user / "go").touch()
        home.ended(local)
        # A server finds only its own GPUs.
        home.stop()
        home.serve("--gpus", "0", "1", "--port", "0")


def test_aut_44_a_server_declares_no_gpus_if_nodes_have_them(reach: SshCluster) -> None:
    remote = reach.machine("rich", gpus=2)
    stoker = (sys.executable, "-m", "stoker")
    with open_auto_env() as home:
        added = home.run(*stoker, "nodes", "add", "rich", remote.url, "--key", remote.key)
        assert added.returncode == 0, added.stderr
        assert home.run(*stoker, "daemon", "stop").returncode == 0
        home.serve("--gpus", "0", "1", "--port", "0")
        assert home.result("hostname", "-n", "2") == "rich\n"
        heading, line = home.ok("history").splitlines()[1:3]
        assert line.split()[heading.split().index("NODE") - 1] == "rich"
        assert "started on GPU 0,1 of rich: hostname" in home.out.read_text()
