"""Pilots on a real kubelet: asked for when jobs need them, used as nodes, deleted when idle."""

from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, until
from e2e.journal import journal
from kubernetes.actions import (
    HOLD,
    WAIT_SECONDS,
    add_cluster,
    in_pod,
    nodes,
    only_pod,
    pilots,
    release_jobs,
    says,
    submit,
)
from kubernetes.kubelet_node import BARE_IMAGE, IMAGE, KubeletNode
from slurm.test_pilots import ELASTIC
from ssh.test_training import SCRIPT

pytestmark = [pytest.mark.proof, pytest.mark.timeout(180)]


def test_a_job_runs_in_a_pilot_that_is_deleted_when_it_is_idle(
    real: KubeletNode, idle: DaemonFixture
) -> None:
    add_cluster(idle, pilot=f"gpus=2 image={IMAGE} max=2 idle=1s")
    assert pilots(idle) == []
    job = submit(idle, "echo $CUDA_VISIBLE_DEVICES; exit 5")
    ended = idle.end_of(job, WAIT_SECONDS)
    assert (ended["result"], ended["node"]) == (5, "lab-1"), idle.log
    assert idle.output(job).split() == ["0"]
    until(lambda: not pilots(idle))
    until(lambda: not real.cluster.pods(), WAIT_SECONDS)


def test_two_jobs_share_a_pilot_that_ends_with_the_removal_of_its_cluster(
    real: KubeletNode, idle: DaemonFixture
) -> None:
    add_cluster(idle)
    jobs = [submit(idle, f"echo $CUDA_VISIBLE_DEVICES; {HOLD}") for _ in range(2)]
    for job in jobs:
        says(idle, job, "\n")
    only_pod(real.cluster)
    assert nodes(idle)["lab-1"]["resources"]["gpu"]["total"] == "2"
    release_jobs(real.cluster)
    assert [idle.end_of(job)["result"] for job in jobs] == [0, 0]
    assert sorted(idle.output(job).strip() for job in jobs) == ["0", "1"]
    done = idle.stoker("nodes", "remove", "lab")
    assert done.returncode == 0, done.stderr
    assert pilots(idle) == []
    until(lambda: not real.cluster.pods(), WAIT_SECONDS)


def test_a_gang_runs_in_two_pods(real: KubeletNode, idle: DaemonFixture) -> None:
    add_cluster(idle)
    job = int(idle.submit("-N", "2", "--gpus", "2", "--wrap", "echo $STOKER_NODE_RANK"))
    assert idle.end_of(job, WAIT_SECONDS)["result"] == 0, (idle.job(job), idle.log)
    assert {part["node"] for part in idle.job(job)["parts"]} == {"lab-1", "lab-2"}
    assert len(real.cluster.pods()) == 2


def test_jobs_share_a_gpu_of_a_pod_by_memory(real: KubeletNode, idle: DaemonFixture) -> None:
    add_cluster(idle, pilot=f"gpus=1 vram=16G cores=1 image={IMAGE} max=1")
    idle.script("train.py", SCRIPT)
    options = ("--single-gpu", "--epochs", "1", "--gpu-memory", "6G")
    jobs = [int(idle.submit(*options, "python3", "train.py")) for _ in range(3)]
    for job in jobs[:2]:
        says(idle, job, "begins")
        assert idle.job(job)["devices"]["gpu"] == ["0"]
    assert idle.job(jobs[2])["state"] == "PENDING"
    pod = only_pod(real.cluster)["metadata"]["name"]
    in_pod(real.cluster, pod, "touch ~/go0")
    assert [idle.end_of(job, WAIT_SECONDS)["result"] for job in jobs] == [0, 0, 0]


def test_a_training_job_is_preempted_at_a_checkpoint_and_resumes(
    real: KubeletNode, idle: DaemonFixture
) -> None:
    add_cluster(idle, pilot=f"gpus=1 cores=1 image={IMAGE} max=1")
    idle.script("train.py", SCRIPT)
    options = ("--gpus", "1", "--exclusive-gpu", "--epochs", "3")
    job = int(idle.submit(*options, "python3", "train.py"))
    says(idle, job, "begins")
    pod = only_pod(real.cluster)["metadata"]["name"]
    urgent = submit(idle, f"echo first; {HOLD}", "--priority", "9", "--exclusive-gpu")
    until(lambda: in_pod(real.cluster, pod, "ls /stoker/.stoker/run/*/*.reports").count("stop"))
    in_pod(real.cluster, pod, "touch ~/go0")
    says(idle, urgent, "first")
    assert idle.job(job)["training"]["epochs_done"] == 1
    in_pod(real.cluster, pod, "touch ~/go1 ~/go2")
    release_jobs(real.cluster)
    assert idle.end_of(job, WAIT_SECONDS)["result"] == 0
    begins = [line.split()[2:4] for line in idle.output(job).splitlines() if "begins" in line]
    assert begins[-1] == ["1", "1"]
    assert "trained 111" in idle.output(job)


def test_an_elastic_job_grows_in_a_pilot(real: KubeletNode, idle: DaemonFixture) -> None:
    add_cluster(idle, "--ahead", "2", pilot=f"gpus=2 cores=1 image={IMAGE} max=1")
    idle.script("elastic.py", ELASTIC)
    job = int(idle.submit("--gpus", "1..2", "python3", "elastic.py"))
    says(idle, job, " on 0\n")
    says(idle, job, " on 0,1\n")
    measured = idle.job(job)["training"]
    assert measured["epochs_done"] > 0
    assert measured["epoch_seconds"] > 0
    idle.stoker("cancel", job)
    idle.end_of(job, WAIT_SECONDS)
    logs = Path(idle.job(job)["log"]).parent
    text = "".join((logs / name).read_text() for name in (f"{job}.out", f"{job}.1.out"))
    lines = [line.split() for line in text.splitlines() if line.startswith("epoch ")]
    assert [int(words[1]) for words in lines] == list(range(len(lines)))
    assert [words[3] for words in lines] == sorted(words[3] for words in lines)
    assert [event["gpus"] for event in journal(idle, "StopAsked")] == [2]


def test_processes_that_lose_their_parent_are_reaped(
    real: KubeletNode, idle: DaemonFixture
) -> None:
    add_cluster(idle)
    orphan = "(setsid sh -c 'sleep 0.2; exit 3' &) ; sleep 1"
    assert idle.end_of(submit(idle, orphan), WAIT_SECONDS)["result"] == 0
    pod = only_pod(real.cluster)["metadata"]["name"]

    def zombies() -> str:
        return in_pod(real.cluster, pod, "cat /proc/[0-9]*/stat | grep ' Z ' || :")

    until(lambda: zombies() == "", WAIT_SECONDS)


def test_an_image_without_the_tools_is_named(real: KubeletNode, idle: DaemonFixture) -> None:
    add_cluster(idle, pilot=f"gpus=1 image={BARE_IMAGE} max=1")
    job = submit(idle, "true")
    until(lambda: "the image lacks programs" in str(nodes(idle)["lab"]["notes"]), WAIT_SECONDS)
    text = idle.stoker("why", job).stdout
    assert "grep" in text
    assert "tail" in text
