"""The daemon as a Deployment with PostgreSQL instead of a volume, on a real kubelet."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conftest import require
from e2e.daemon_fixture import until
from kubernetes.kubelet_node import KubeletNode
from kubernetes.test_daemon_in_cluster import SECONDS, InCluster
from kubernetes.test_manifests import PACKAGING
from postgres import Server, program

pytestmark = [pytest.mark.proof, pytest.mark.timeout(400)]
EPOCHS = 60
TRAIN = f"""
import time
from stoker.training import job
for epoch in job.epochs({EPOCHS}):
    time.sleep(1)
    job.report(loss=1.0)
"""


@pytest.fixture
def database(kubelet_node: KubeletNode) -> Iterator[str]:
    """A PostgreSQL server outside of the cluster; its URL for pods."""
    require(program("postgres"))
    host = kubelet_node.cluster.host_address
    server = Server(listen_addresses=f"'{host}'")
    try:
        with (server.data / "pg_hba.conf").open("a") as rules:
            rules.write("host stoker guarded 10.0.0.0/8 scram-sha-256\n")
        server.restart("fast")
        yield f"postgresql://guarded:correct%2Fhorse@{host}/stoker"
    finally:
        server.remove()


@pytest.fixture
def daemon(kubelet_node: KubeletNode, database: str, tmp_path: Path) -> Iterator[InCluster]:
    kubelet_node.cluster.use_nodes("real")
    made = InCluster(kubelet_node, "pg")
    try:
        secret = ("secret", "generic", "stoker-postgres", f"--from-literal=url={database}")
        made.kubectl("create", *secret)
        made.apply(f'volumes = {{ "/var/lib/stoker" = "hostPath:{tmp_path}" }}')
        patch = (PACKAGING / "postgres/patch.yaml").read_text()
        made.kubectl("patch", "deployment", "stoker", "-p", patch)
        made.wait_until_ready()
        yield made
    finally:
        made.stoker("nodes", "remove", "here", "--force")
        made.kubectl("delete", "namespace", "pg", "--wait=false")


def daemon_pod(daemon: InCluster) -> str:
    """Return the pod of the daemon that is not being deleted."""
    pods = daemon.cluster.get("pods", "-n", daemon.namespace, "-l", "app=stoker")
    (name,) = (
        pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]
    )
    return str(name)


def epochs_done(daemon: InCluster, job: str) -> int:
    return int(daemon.job(job)["training"]["epochs_done"])


def ended(daemon: InCluster, job: str) -> dict[str, Any] | None:
    """Return a job once it has ended."""
    found = daemon.job(job)
    return found if found["state"] in ("FAILED", "COMPLETED") else None


def test_jobs_survive_when_the_daemon_starts_elsewhere(daemon: InCluster) -> None:
    """Its pod is replaced by one without any file of it."""
    in_pilot = daemon.submit("until [ -e /tmp/go ]; do sleep 0.1; done; exit 5")
    # No pilot has two GPUs, so that it is handed over.
    script = f"cat >/tmp/train.py <<'END'\n{TRAIN}\nEND\nexec python3 /tmp/train.py"
    training = daemon.stoker(
        "submit", "--chdir", "/tmp", "--no-send", "--gpus", "2", "--cpus", "0.5",
        "--epochs", str(EPOCHS), "--snapshots-dir", "/var/lib/stoker", "--wrap", script,
    ).strip()  # fmt: skip
    until(lambda: epochs_done(daemon, training) > 2 or ended(daemon, training), SECONDS)
    assert not (end := ended(daemon, training)), end
    until(lambda: daemon.job(in_pilot)["state"] == "RUNNING", SECONDS)
    (pilot,) = daemon.pilots()
    token, before = daemon.read_token(), daemon_pod(daemon)
    known = epochs_done(daemon, training)
    daemon.kubectl("delete", "pod", before, "--grace-period=1")
    until(lambda: daemon_pod(daemon) != before, SECONDS)
    daemon.wait_until_ready()
    assert daemon.read_token() == token
    assert daemon.job(in_pilot)["state"] == "RUNNING"
    until(lambda: epochs_done(daemon, training) > known, SECONDS)
    daemon.kubectl("exec", pilot, "--", "touch", "/tmp/go")
    for job, code, attempts in ((in_pilot, 5, 0), (training, 0, 0)):
        end = until(partial(ended, daemon, job), SECONDS)
        assert (end["exit_code"], end["attempt"]) == (code, attempts), end
    assert epochs_done(daemon, training) == EPOCHS
    assert daemon.pilots() == [pilot]
