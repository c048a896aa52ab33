"""Failures of pods, of the API server and of the daemon: every job ends once, with its own exit."""

import os
import signal
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, kill, until
from kubernetes.actions import (
    HOLD,
    ONCE,
    PILOT,
    WAIT_SECONDS,
    add_cluster,
    in_pod,
    nodes,
    only_pod,
    pilots,
    ran,
    release_jobs,
    says,
    submit,
)
from kubernetes.control_plane import KubernetesCluster
from kubernetes.kubelet_node import IMAGE, KubeletNode

pytestmark = [pytest.mark.proof, pytest.mark.timeout(240)]


def name_of(node: KubeletNode) -> str:
    return str(only_pod(node.cluster)["metadata"]["name"])


def connections(box: DaemonFixture) -> list[int]:
    """Return the kubectl processes that connect a daemon to its pilots."""
    prefix = f"stoker-{(box.state / 'install').read_text()[:8]}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "comm").read_text().strip() == "kubectl":
                words = (entry / "cmdline").read_bytes().split(b"\0")
                is_own = any(word.startswith(prefix) for word in words)
                found += [int(entry.name)] if b"exec" in words and is_own else []
        except OSError:
            continue
    return found


def test_a_killed_connection_loses_nothing(real: KubeletNode, idle: DaemonFixture) -> None:
    add_cluster(idle)
    job = submit(idle, f"{ONCE}; echo one; {HOLD}; echo two; exit 5")
    says(idle, job, "one")
    for pid in connections(idle):
        kill(pid)
    release_jobs(real.cluster)
    assert idle.end_of(job, WAIT_SECONDS)["result"] == 5
    assert idle.output(job) == "one\ntwo\n"
    assert ran(real.cluster, name_of(real)) == [job]


def test_a_killed_daemon_finds_its_pod_and_the_job_in_it(
    real: KubeletNode, idle: DaemonFixture
) -> None:
    add_cluster(idle)
    job = submit(idle, f"{ONCE}; echo one; {HOLD}; exit 5")
    says(idle, job, "one")
    before = only_pod(real.cluster)["metadata"]["uid"]
    idle.crash()
    idle.up()
    until(lambda: nodes(idle)["lab-1"]["state"] == "up", WAIT_SECONDS)
    assert idle.job(job)["state"] == "RUNNING"
    release_jobs(real.cluster)
    assert idle.end_of(job, WAIT_SECONDS)["result"] == 5
    assert ran(real.cluster, name_of(real)) == [job]
    assert only_pod(real.cluster)["metadata"]["uid"] == before


def test_a_daemon_that_is_killed_again_and_again_creates_one_pod(
    real: KubeletNode, idle: DaemonFixture
) -> None:
    add_cluster(idle)
    job = submit(idle, f"{ONCE}; echo one; {HOLD}; exit 5")
    for _ in range(3):
        idle.crash()
        idle.up()
    says(idle, job, "one")
    release_jobs(real.cluster)
    assert idle.end_of(job, WAIT_SECONDS)["result"] == 5
    assert ran(real.cluster, name_of(real)) == [job]


def test_attempts_in_a_deleted_pod_are_lost_at_once_and_run_again(
    real: KubeletNode, idle: DaemonFixture
) -> None:
    add_cluster(idle)
    again = submit(idle, f"echo one; {HOLD}; exit 5", "--requeue")
    fails = submit(idle, f"echo one; {HOLD}; exit 5", "--no-requeue")
    for job in (again, fails):
        says(idle, job, "one")
    first = name_of(real)
    real.cluster.kubectl("delete", "pod", first, "--grace-period=1", "--wait=false")
    assert idle.end_of(fails)["state"] == "NODE_FAIL"
    until(lambda: any(name != first for name in real.cluster.pods()), WAIT_SECONDS)
    until(lambda: idle.job(again)["state"] == "RUNNING", WAIT_SECONDS)
    release_jobs(real.cluster)
    assert idle.end_of(again, WAIT_SECONDS)["result"] == 5


def test_a_deleted_pod_lets_a_job_end_within_its_grace_period(
    real: KubeletNode, idle: DaemonFixture
) -> None:
    add_cluster(idle)
    job = submit(idle, f"echo one; {HOLD}; echo two; exit 5")
    says(idle, job, "one")
    real.cluster.kubectl("delete", "pod", name_of(real), "--wait=false")
    until(lambda: (nodes(idle)["lab-1"]["allocation"] or {}).get("end"), WAIT_SECONDS)
    release_jobs(real.cluster)
    ended = idle.end_of(job, WAIT_SECONDS)
    assert ended["result"] == 5, (ended, idle.log)
    assert idle.output(job) == "one\ntwo\n"
    until(lambda: not real.cluster.pods(), WAIT_SECONDS)


def test_a_restarted_api_server_loses_nothing(real: KubeletNode, idle: DaemonFixture) -> None:
    add_cluster(idle)
    job = submit(idle, f"{ONCE}; echo one; {HOLD}; exit 5")
    says(idle, job, "one")
    pod = name_of(real)
    real.cluster.stop_apiserver()
    try:
        for pid in connections(idle):
            kill(pid)
        until(lambda: nodes(idle)["lab"]["state"] == "unreachable", WAIT_SECONDS)
        assert idle.job(job)["state"] == "RUNNING"
    finally:
        real.cluster.start_apiserver()
    until(lambda: nodes(idle)["lab-1"]["state"] == "up", WAIT_SECONDS)
    release_jobs(real.cluster)
    assert idle.end_of(job, WAIT_SECONDS)["result"] == 5
    assert ran(real.cluster, pod) == [job]


def test_a_job_continues_while_its_kubelet_is_down(real: KubeletNode, idle: DaemonFixture) -> None:
    add_cluster(idle)
    job = submit(idle, f"{ONCE}; echo one; {HOLD}; exit 5", "--requeue")
    says(idle, job, "one")
    pod = only_pod(real.cluster)
    home = real.volume(pod["metadata"]["uid"], "home")
    real.stop_kubelet()
    try:
        for pid in connections(idle):
            kill(pid)
        until(lambda: nodes(idle)["lab-1"]["state"] == "unreachable", WAIT_SECONDS)
        until(lambda: not real.cluster.is_ready(real.name), WAIT_SECONDS)
        assert idle.job(job)["state"] == "RUNNING"
        assert home.is_dir()
    finally:
        real.start_kubelet()
    until(lambda: nodes(idle)["lab-1"]["state"] == "up", WAIT_SECONDS)
    release_jobs(real.cluster)
    assert idle.end_of(job, WAIT_SECONDS)["result"] == 5
    assert ran(real.cluster, pod["metadata"]["name"]) == [job]


def test_a_stopped_daemon_leaves_its_pods(real: KubeletNode, idle: DaemonFixture) -> None:
    add_cluster(idle)
    job = submit(idle, f"echo one; {HOLD}; exit 5")
    says(idle, job, "one")
    kill(idle.pid, signal.SIGTERM)
    until(lambda: not idle.answers())
    before = name_of(real)
    release_jobs(real.cluster)
    idle.up()
    assert idle.end_of(job, WAIT_SECONDS)["result"] == 5
    assert name_of(real) == before


# -- on fake nodes ------------------------------------------------------------------------


def test_an_image_that_cannot_be_pulled_is_shown(real: KubeletNode, idle: DaemonFixture) -> None:
    add_cluster(idle, pilot="gpus=1 image=localhost/missing:test max=1")
    job = submit(idle, "true")
    until(lambda: "localhost/missing:test" in idle.stoker("why", job).stdout, WAIT_SECONDS)
    assert "localhost/missing:test" in idle.stoker("nodes", "-v").stdout
    assert nodes(idle)["lab-1"]["state"] == "queued"


def test_a_volume_that_cannot_be_mounted_is_shown(real: KubeletNode, idle: DaemonFixture) -> None:
    add_cluster(idle, "--volume", "/x=hostPath:/no/such")
    job = submit(idle, "true")
    until(lambda: "FailedMount: " in idle.stoker("why", job).stdout, WAIT_SECONDS)
    assert "/no/such is not a directory" in idle.stoker("why", job).stdout


def test_an_image_name_that_is_invalid_is_not_waited_for(
    real: KubeletNode, idle: DaemonFixture
) -> None:
    add_cluster(idle, pilot="gpus=1 image=NoSuchName max=1")
    job = submit(idle, "true")
    until(lambda: "InvalidImageName" in str(nodes(idle)["lab"]["notes"]), WAIT_SECONDS)
    assert "InvalidImageName" in idle.stoker("why", job).stdout


def test_a_pod_that_no_node_has_room_for_shows_why(
    kubernetes: KubernetesCluster, idle: DaemonFixture
) -> None:
    add_cluster(idle, pilot=f"gpus=9 image={IMAGE} max=1")
    job = submit(idle, "true")
    until(lambda: "Insufficient nvidia.com/gpu" in idle.stoker("why", job).stdout, WAIT_SECONDS)
    assert nodes(idle)["lab"]["pilots"] == {"running": 0, "queued": 1}
    assert "0 pilots, 1 pending" in idle.stoker("nodes").stdout
    idle.stoker("cancel", job)
    until(lambda: not pilots(idle), WAIT_SECONDS)
    until(lambda: not kubernetes.pods(), WAIT_SECONDS)


def test_a_quota_is_shown_and_not_tried_endlessly(
    kubernetes: KubernetesCluster, idle: DaemonFixture
) -> None:
    kubernetes.apply({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": "default"},
        "spec": {"hard": {"requests.nvidia.com/gpu": "0"}},
    })  # fmt: skip
    try:
        until(lambda: kubernetes.get("quota", "none").get("status", {}).get("hard"))
        add_cluster(idle)
        job = submit(idle, "true")
        until(lambda: "exceeded quota" in str(nodes(idle)["lab"]["notes"]), WAIT_SECONDS)
        assert "exceeded quota" in idle.stoker("why", job).stdout
        assert "exceeded quota" in idle.stoker("nodes", "-v").stdout
        assert pilots(idle) == []
    finally:
        kubernetes.kubectl("delete", "quota", "none")


def test_an_api_server_that_does_not_answer_is_waited_for(
    real: KubeletNode, idle: DaemonFixture
) -> None:
    idle.up()
    real.cluster.stop_apiserver()
    try:
        done = idle.stoker("nodes", "add", "lab", "kubernetes://", "--pilot", PILOT)
        assert done.returncode == 1
        assert "cannot be reached yet" in done.stderr
        assert "was refused" in nodes(idle)["lab"]["why"]
    finally:
        real.cluster.start_apiserver()
    until(lambda: nodes(idle)["lab"]["state"] == "up", WAIT_SECONDS)
    job = submit(idle, "exit 5")
    assert idle.end_of(job, WAIT_SECONDS)["result"] == 5


def test_without_kubectl_the_message_says_so(
    kubernetes: KubernetesCluster, idle: DaemonFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = idle.home.parent / "bin"
    directory.mkdir()
    for name in ("sh", "env"):
        (directory / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", os.fspath(directory))
    idle.up()
    done = idle.stoker("nodes", "add", "lab", "kubernetes://", "--pilot", PILOT)
    assert "kubectl was not found here" in done.stderr


def test_a_pod_of_this_installation_that_the_journal_does_not_know_is_deleted(
    real: KubeletNode, idle: DaemonFixture
) -> None:
    add_cluster(idle)
    job = submit(idle, f"echo one; {HOLD}")
    says(idle, job, "one")
    pod = only_pod(real.cluster)
    copy = {
        "apiVersion": "v1", "kind": "Pod", "spec": {
            "containers": [{"name": "main", "image": IMAGE, "command": ["sleep", "100"]}],
            "terminationGracePeriodSeconds": 1,
        },
        "metadata": {"name": "unknown", "labels": pod["metadata"]["labels"]},
    }  # fmt: skip
    real.cluster.apply(copy)
    idle.client.refresh_nodes(["lab"])
    try:
        until(lambda: set(real.cluster.pods()) == {pod["metadata"]["name"]}, WAIT_SECONDS)
    except AssertionError:
        print(idle.log[-3000:], real.cluster.kubectl("get", "pods", "-o", "wide", "--show-labels"))
        raise
    assert in_pod(real.cluster, pod["metadata"]["name"], "echo lives") == "lives\n"
