"""Jobs of several nodes across two real kubelets: in pilots, and handed over as a pod per node."""

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.daemon_fixture import DaemonFixture, until
from kubernetes.actions import WAIT_SECONDS, add_cluster, add_reporting_cluster, nodes
from kubernetes.control_plane import KubernetesCluster
from kubernetes.kubelet_node import IMAGE

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

ACROSS = ("-N", "2", "--gpus-per-node", "3")
"""Each node has four GPUs: two parts have room on two nodes only."""
MEET = """
import json, os, socket, time
rank = int(os.environ["NODE_RANK"])
end = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(("", end[1])) as server:
        peer, address = server.accept()
        peer.sendall(b"hello")
        print("served", address[0], flush=True)
else:
    for _ in range(300):
        try:
            with socket.create_connection(end, timeout=5) as peer:
                print("read", peer.recv(5).decode(), flush=True)
                break
        except OSError:
            time.sleep(0.1)
names = ("NODE_RANK", "NUM_NODES", "WORLD_SIZE", "NNODES", "NODELIST", "MASTER_ADDR", "TF_CONFIG")
print(json.dumps({name: os.environ.get(name) for name in names}), flush=True)
"""
TRAIN = """
import os, time
from stoker.training import job
rank, attempt = int(os.environ["NODE_RANK"]), os.environ["STOKER_ATTEMPT"]
print("begins at", job.epochs_done, flush=True)
try:
    for epoch in job.epochs(100_000):
        job.measure()
        time.sleep(0.2)
        open(f"{attempt}.{epoch}.{rank}", "w").close()
        while not os.path.exists(f"{attempt}.{epoch}.{1 - rank}"):
            time.sleep(0.01)
        if os.path.exists("end") and attempt == "1":
            break
except SystemExit as stop:
    print("stopped after", epoch, stop.code, flush=True)
    raise
"""
"""A step is done when both parts have done it."""


def hand_over(box: DaemonFixture) -> None:
    """Start a daemon that hands over to nodes which have its files."""
    box.up()
    home = str(box.home.parent)
    added = box.stoker(
        "nodes", "add", "lab", "kubernetes://", "--image", IMAGE,
        "--volume", f"{home}=hostPath:{home}",
    )  # fmt: skip
    assert added.returncode == 0, added.stderr
    until(lambda: nodes(box)["lab"]["state"] == "up")


def part(box: DaemonFixture, job: int, rank: int) -> list[str]:
    """Return the output of one part."""
    return box.stoker("logs", "--part", str(rank), str(job)).stdout.splitlines()


def met(box: DaemonFixture, job: int) -> list[dict[str, Any]]:
    """Return the variables of both parts, which have talked to each other."""
    outputs = [part(box, job, rank) for rank in range(2)]
    assert outputs[0][0].startswith("served 10.78."), outputs
    assert outputs[1][0] == "read hello", outputs
    return [json.loads(lines[-1]) for lines in outputs]


def hosts(cluster: KubernetesCluster) -> list[str]:
    """Return the nodes of all pods."""
    return sorted(pod["spec"].get("nodeName", "") for pod in cluster.pods().values())


def test_a_gang_in_pilots_meets_across_two_nodes(
    pair: KubernetesCluster, idle: DaemonFixture
) -> None:
    add_cluster(idle, pilot=f"gpus=3 cores=1 image={IMAGE} max=2 idle=60s")
    idle.script("meet.py", MEET)
    job = int(idle.submit(*ACROSS, "python3", "meet.py"))
    end = idle.end_of(job, 2 * WAIT_SECONDS)
    assert end["result"] == 0, (end, idle.log, part(idle, job, 0), part(idle, job, 1))
    assert hosts(pair) == ["other2", "real1"]
    assert {each["node"] for each in end["parts"]} == {"lab-1", "lab-2"}
    first, second = met(idle, job)
    assert first["MASTER_ADDR"] == second["MASTER_ADDR"]
    assert first["MASTER_ADDR"].startswith("10.78.")


def test_a_gang_that_is_handed_over_meets_across_two_nodes(
    pair: KubernetesCluster, idle: DaemonFixture
) -> None:
    hand_over(idle)
    idle.script("meet.py", MEET)
    job = int(idle.submit(*ACROSS, "--epochs", "1", "python3", "meet.py"))
    end = idle.end_of(job, 2 * WAIT_SECONDS)
    assert end["result"] == 0, (end, idle.log, part(idle, job, 0), part(idle, job, 1))
    assert sorted(end["hosts"]) == ["other2", "real1"]
    found = met(idle, job)
    names = found[0]["NODELIST"].split(",")
    assert sorted(names) == ["other2", "real1"]
    for rank, variables in enumerate(found):
        config = json.loads(variables.pop("TF_CONFIG"))
        workers = config["cluster"]["worker"]
        assert config["task"] == {"type": "worker", "index": rank}
        assert workers[0].startswith(f"{variables['MASTER_ADDR']}:")
        assert len({worker.partition(":")[0] for worker in workers}) == 2
        assert variables == {
            "NODE_RANK": str(rank), "NUM_NODES": "2", "WORLD_SIZE": "2", "NNODES": "2",
            "NODELIST": ",".join(names), "MASTER_ADDR": found[0]["MASTER_ADDR"],
        }  # fmt: skip
    until(lambda: not pair.pods(), WAIT_SECONDS)


def test_a_part_that_fails_ends_the_other(pair: KubernetesCluster, idle: DaemonFixture) -> None:
    hand_over(idle)
    line = "echo up; [ $NODE_RANK = 0 ] || exit 9; sleep 300"
    job = int(idle.submit(*ACROSS, "--wrap", line))
    end = idle.end_of(job, 2 * WAIT_SECONDS)
    assert (end["state"], end["result"]) == ("FAILED", 9), (end, idle.log)
    assert part(idle, job, 0)[0] == "up"
    until(lambda: not pair.pods(), WAIT_SECONDS)


def test_a_killed_daemon_is_replaced_and_no_part_runs_twice(
    pair: KubernetesCluster, idle: DaemonFixture
) -> None:
    hand_over(idle)
    line = "echo $NODE_RANK >>ran; until [ -e go ]; do sleep 0.1; done; exit $NODE_RANK"
    job = int(idle.submit(*ACROSS, "--wrap", line))
    until(lambda: len(pair.pods()) == 2, WAIT_SECONDS)
    ran = idle.user / "ran"
    for _ in range(20):  # before, at and after the barrier
        idle.crash()
        idle.up()
        if ran.exists() and len(ran.read_text().split()) == 2:
            break
    idle.becomes(job, "RUNNING")
    idle.crash()
    (idle.user / "go").touch()
    idle.up()
    end = idle.end_of(job, WAIT_SECONDS)
    assert (end["state"], end["result"], end["attempt"]) == ("FAILED", 1, 0), (end, idle.log)
    assert sorted(ran.read_text().split()) == ["0", "1"]
    until(lambda: not pair.pods(), WAIT_SECONDS)


@pytest.mark.parametrize("way", ["log", "http"])
def test_all_parts_stop_before_one_epoch_when_a_pod_is_evicted(
    pair: KubernetesCluster, idle: DaemonFixture, way: str
) -> None:
    if way == "http":
        add_reporting_cluster(idle, pair)
    else:
        hand_over(idle)
    idle.script("train.py", TRAIN)
    job = int(idle.submit(*ACROSS, "--epochs", "100000", "python3", "train.py"))
    until(lambda: idle.job(job)["training"]["epochs_done"] > 2, 2 * WAIT_SECONDS)
    (last,) = (name for name in pair.pods() if name.endswith("-1"))
    pair.kubectl("delete", "pod", last, "--wait=false")
    until(lambda: idle.job(job)["attempt"] == 1, 2 * WAIT_SECONDS)
    (idle.user / "end").touch()
    assert idle.end_of(job, 2 * WAIT_SECONDS)["result"] == 0, idle.log
    assert idle.job(job)["attempt"] == 1
    logs = Path(idle.job(job)["log"]).parent
    first, second = (
        [line for line in log.read_text().splitlines() if line.startswith("stopped after")]
        for log in (logs / f"{job}.out", logs / f"{job}.out.1")
    )
    assert first == second
    _, _, last, code = first[0].split()
    assert code == "75"
    assert [part(idle, job, rank)[0] for rank in range(2)] == [f"begins at {int(last) + 1}"] * 2


def test_a_gang_for_which_there_is_room_in_part_waits_and_is_cancelled_as_a_whole(
    pair: KubernetesCluster, idle: DaemonFixture
) -> None:
    hand_over(idle)
    job = int(idle.submit("-N", "3", "--gpus-per-node", "3", "--wrap", "touch ran"))
    until(lambda: "2 of 3 pods run: " in idle.stoker("why", str(job)).stdout, 2 * WAIT_SECONDS)
    assert idle.job(job)["state"] == "QUEUED"
    assert idle.stoker("cancel", str(job)).returncode == 0
    assert idle.end_of(job, WAIT_SECONDS)["state"] == "CANCELLED"
    until(lambda: not pair.pods(), WAIT_SECONDS)
    assert not (idle.user / "ran").exists()
