"""`nodes check` on a real control plane, with all rights and with none."""

import json

import pytest

from e2e.daemon_fixture import DaemonFixture, until
from kubernetes.actions import HOLD, PILOT, WAIT_SECONDS, nodes, says, submit
from kubernetes.control_plane import KubernetesCluster
from kubernetes.kubelet_node import KubeletNode
from stoker.executors.kubernetes.checks import EVENT_RIGHTS, HANDOVER_RIGHTS

pytestmark = [pytest.mark.proof, pytest.mark.timeout(180)]
CLAIM = {
    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "homes"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}  # fmt: skip


def test_all_is_well_with_all_rights(kubernetes: KubernetesCluster, idle: DaemonFixture) -> None:
    idle.up()
    idle.stoker("nodes", "add", "lab", "kubernetes://", "--pilot", PILOT)
    done = idle.stoker("nodes", "check", "lab")
    assert done.returncode == 0, done
    assert "Kubernetes v1.20.2" in done.stdout
    assert "nvidia.com/gpu on" in done.stdout
    assert "NVIDIA-A100-SXM4-40GB" in done.stdout
    assert "the server accepts its pod" in done.stdout
    assert "by NVIDIA_VISIBLE_DEVICES: the first such job finds out" in done.stdout
    assert kubernetes.pods() == {}


def test_a_namespace_that_does_not_exist_is_named(
    kubernetes: KubernetesCluster, idle: DaemonFixture
) -> None:
    idle.up()
    for namespace, code in (("default", 0), ("nosuch", 1)):
        idle.stoker("nodes", "add", "lab", "kubernetes://", "--namespace", namespace)
        done = idle.stoker("nodes", "check", "lab")
        assert (done.returncode, "nosuch" in done.stdout) == (code, bool(code)), done.stdout


def test_what_is_wrong_with_gpus_volumes_and_queues_is_named(
    kubernetes: KubernetesCluster, idle: DaemonFixture
) -> None:
    idle.up()
    kubernetes.apply(CLAIM)
    pilot = PILOT.replace("gpus=2", "gpus=9")
    volumes = ("--volume", "/home=pvc:homes", "--volume", "/data=pvc:missing")
    idle.stoker("nodes", "add", "lab", "kubernetes://", "--pilot", pilot, *volumes)
    try:
        done = idle.stoker("nodes", "check", "lab", "--json")
    finally:
        kubernetes.kubectl("delete", "pvc", "homes", "--wait=false")
    assert done.returncode == 1
    found = {check["what"]: check for check in json.loads(done.stdout)["checks"]}
    assert found["GPUs"]["state"] == "failed"
    assert "a pilot needs 9 on one node" in found["GPUs"]["text"]
    assert (found["volume homes"]["state"], found["volume missing"]["state"]) == (
        "unknown", "failed",
    )  # fmt: skip


def test_the_printed_role_is_what_a_user_without_rights_needs(
    real: KubeletNode, idle: DaemonFixture
) -> None:
    cluster = real.cluster
    idle.up()
    config = ("--kubeconfig", str(cluster.user_kubeconfig))
    idle.stoker("nodes", "add", "lab", "kubernetes://", "--pilot", PILOT, *config)
    until(lambda: "forbidden" in str(nodes(idle)["lab"]["why"]))
    done = idle.stoker("nodes", "check", "lab")
    assert done.returncode == 1
    assert "not allowed in namespace default: create pods" in done.stdout
    role = done.stdout.partition("\n\n")[2]
    assert role.count("verbs:") == len(HANDOVER_RIGHTS | EVENT_RIGHTS)
    assert 'name: "stoker"' in role
    cluster.kubectl("apply", "-f", "-", input=role)
    try:
        done = idle.stoker("nodes", "check", "lab")
        assert done.returncode == 0, done.stdout
        assert "nodes cannot be listed, which is not needed" in done.stdout
        until(lambda: nodes(idle)["lab"]["state"] == "up", WAIT_SECONDS)
        job = submit(idle, "echo one; exit 5")
        assert idle.end_of(job, WAIT_SECONDS)["result"] == 5
        held = submit(idle, f"echo one; {HOLD}")
        says(idle, held, "one")
        idle.stoker("cancel", held)
        assert idle.stoker("nodes", "remove", "lab", "--force").returncode == 0
        until(lambda: not cluster.pods(), WAIT_SECONDS)
    finally:
        cluster.kubectl("delete", "role/stoker", "rolebinding/stoker")
