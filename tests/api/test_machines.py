"""Calls with SSH nodes: on this host, or uploaded with their directory."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

import stoker
from e2e.conftest import idle
from e2e.daemon_fixture import DaemonFixture
from ssh.node_actions import add
from ssh.ssh_cluster import SshCluster, cluster, daemon_and_cluster, shared_cluster

__all__ = ["cluster", "daemon_and_cluster", "idle", "shared_cluster"]
SOON = 40.0
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def where(name: str) -> tuple[str, str]:
    Path("made.txt").write_text("made\n")
    return socket.gethostname(), Path(name).read_text()


def fails() -> None:
    raise LookupError(socket.gethostname())


def same_python() -> bool:
    """Whether the Python of the cluster, which has no cloudpickle, reads what ours has pickled."""
    code = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    return subprocess.run(["/usr/bin/python3", "-c", code], check=False).returncode == 0


def test_a_call_runs_on_this_node_unless_its_folder_is_uploaded(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    monkeypatch.chdir(box.user)
    (box.user / "hello.txt").write_text("hello\n")
    here = stoker.Executor().submit(where, "hello.txt")
    assert here.result(SOON) == (socket.gethostname(), "hello\n")
    assert here.job.raw["request"]["nodelist"] == [here.job.node]
    (box.user / "made.txt").unlink()

    there = stoker.Executor("calls", nodelist="a")
    found, bad = there.submit(where, "hello.txt"), there.submit(fails)
    if not same_python():
        with pytest.raises(RuntimeError, match="which cannot read it"):
            found.result(SOON)
        return
    assert found.result(SOON) == ("a", "hello\n")
    assert found.job.node == "a"
    assert (box.user / "made.txt").read_text() == "made\n", "what it wrote came back"
    with pytest.raises(LookupError, match="a") as caught:
        bad.result(SOON)
    assert "in fails" in str(caught.value.__cause__)
    assert found.paths.folder.parent == box.user / "calls"

    with pytest.raises(stoker.JobFailed) as missing:
        stoker.Executor(nodelist="a").submit(os.getpid).result(SOON)
    assert missing.value.state == "FAILED"
