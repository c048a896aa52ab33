"""Actions of the Kubernetes suites: add a cluster, submit jobs to it, count what ran."""

import socket
from pathlib import Path
from typing import Any

from e2e.daemon_fixture import DaemonFixture, until
from kubernetes.control_plane import KubernetesCluster
from kubernetes.kubelet_node import IMAGE
from slurm.actions import nodes, pilots, wait_for_pilot

__all__ = ["nodes", "pilots", "wait_for_pilot"]

PILOT = f"gpus=2 image={IMAGE} cores=1 mem=1G max=2 idle=60s"
HOLD = "until [ -e /tmp/go ]; do sleep 0.05; done"
"""A job that waits for `release_jobs`."""
ONCE = "echo $STOKER_JOB_ID >>/tmp/ran"
"""A job that records every run in its pod."""
WAIT_SECONDS = 60.0
"""A pod is created, started and joined in 3 s on a quiet host."""


def add_cluster(box: DaemonFixture, *options: str, pilot: str = PILOT) -> None:
    """Start a daemon with a Kubernetes cluster."""
    box.up()
    done = box.stoker("nodes", "add", "lab", "kubernetes://", "--pilot", pilot, *options)
    assert done.returncode == 0, done.stderr


def add_reporting_cluster(
    box: DaemonFixture, cluster: KubernetesCluster, image: str = IMAGE, **volumes: str
) -> None:
    """Start a daemon that pods reach; they have the home of its user, and volumes."""
    host, home = cluster.host_address, str(box.home.parent)
    with socket.create_server((host, 0)) as free:
        address = f"{host}:{free.getsockname()[1]}"
    options = {"address": "kubernetes://", "image": image, "report_address": address}
    lines = ["[api]", f'listen = "{address}"', "[clusters.lab]"]
    lines += [f'{key} = "{value}"' for key, value in options.items()]
    lines += ["[clusters.lab.volumes]", f'"{home}" = "hostPath:{home}"']
    lines += [f'"{home}/{name}" = "hostPath:{path}"' for name, path in volumes.items()]
    box.home.mkdir(exist_ok=True)
    (box.home / "config.toml").write_text("\n".join(lines))
    box.up()
    until(lambda: nodes(box)["lab"]["state"] == "up")


def submit(box: DaemonFixture, line: str, *options: str) -> int:
    """Submit a line of shell that needs a pilot; return the job id."""
    return int(box.submit("--gpus", "1", *options, "--wrap", line))


def only_pod(cluster: KubernetesCluster) -> dict[str, Any]:
    """Return the only pod."""
    (pod,) = cluster.pods().values()
    found: dict[str, Any] = pod
    return found


def in_pod(cluster: KubernetesCluster, pod: str, line: str) -> str:
    """Run a line of shell in a pod; return its output."""
    return cluster.kubectl("exec", pod, "--", "sh", "-c", line)


def release_jobs(cluster: KubernetesCluster) -> None:
    """Let waiting jobs in all pods continue."""
    for name in cluster.pods():  # one that is gone by now has no jobs
        cluster.succeeds("exec", name, "--", "touch", "/tmp/go")


def ran(cluster: KubernetesCluster, pod: str) -> list[int]:
    """Return the jobs that ran in a pod, once for each run."""
    return [int(line) for line in in_pod(cluster, pod, "cat /tmp/ran 2>/dev/null || :").split()]


def says(box: DaemonFixture, job: int, text: str) -> None:
    """Wait until a job has printed a text."""

    def has_printed() -> bool:
        log = Path(box.job(job)["log"])
        return log.exists() and text in log.read_text()

    until(has_printed, WAIT_SECONDS)
