"""run-scheduler and its family on a real kubelet: every option of the guide."""

import contextlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from containers.test_guide import OLDER, block
from e2e.daemon_fixture import DaemonFixture, until
from kubernetes.control_plane import BIN
from kubernetes.kubelet_node import KubeletNode
from kubernetes.python_image import PILOT_TOOLS

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

IMAGE = "localhost/guide:1"
EPOCHS = 16
"""More than are done before the third deletion."""
PLAIN = """\
import os, time
from pathlib import Path
from kubernetesdlprofile import kubeprofiler
prof = kubeprofiler.KubeProfiler()
path = prof.root_dir + '/cifar_net.pth'
done = Path(path).read_text() if prof.RESTARTED else ''
for epoch in range(prof.EPOCHS - prof.EPOCHS_DONE):
    prof.start_epoch()
    for step in range(10):
        time.sleep(0.15)
        prof.measure()
    prof.end_epoch()
    done += f'{prof.EPOCHS_DONE + epoch} '
    Path(path).write_text(done)
print('trained', done)
"""
"""The loop of the guide's PyTorch example: it counts what is left."""
LIGHTNING = """\
import os, time
from pathlib import Path
from kubernetesdlprofile import kubeprofiler
class Net:
    def __init__(self):
        self.prof = kubeprofiler.KubeProfiler()
    def training_step(self):
        time.sleep(0.15)
        self.prof.measure()
    def on_train_epoch_start(self):
        self.prof.start_epoch()
    def on_train_epoch_end(self):
        self.prof.end_epoch()
nn = Net()
folder = Path(nn.prof.root_dir, 'lightning_logs/version_0/checkpoints')
done = Path(nn.prof.ckpt_path).read_text() if nn.prof.RESTARTED else ''
for epoch in range(len(done.split()), nn.prof.EPOCHS):
    nn.on_train_epoch_start()
    for step in range(10):
        nn.training_step()
    nn.on_train_epoch_end()
    done += f'{epoch} '
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f'epoch={epoch}.ckpt').write_text(done)
print('trained', done)
"""
"""Like Lightning does in the guide's example: it resumes from the checkpoint alone."""
KERAS = """\
import os, time
from pathlib import Path
from kubernetesdlprofile import kubeprofiler
prof = kubeprofiler.KubeProfiler()
checkpoint_filepath = os.path.join(prof.root_dir, 'tf_ckpts')
initial_epoch, done = 0, ''
if prof.RESTARTED:
    done = Path(checkpoint_filepath).read_text()
    initial_epoch = prof.EPOCHS_DONE
for epoch in range(initial_epoch, prof.EPOCHS):
    prof.start_epoch()
    for step in range(10):
        time.sleep(0.15)
        prof.measure()
    prof.end_epoch()
    done += f'{epoch} '
    Path(checkpoint_filepath).write_text(done)
print('trained', done)
"""
"""Like the callback of the guide's TensorFlow example."""
DUMP = """\
import json, os, time
from kubernetesdlprofile import kubeprofiler
api = kubeprofiler.KubeProfiler()
names = ('MASTER_ADDR', 'MASTER_PORT', 'WORLD_SIZE', 'NODE_RANK', 'TF_CONFIG', 'JOB_UUID',
         'JOB_RESTARTED', 'RESERVED_MEM', 'EPOCHS_DONE', 'HEARTBEAT_FREQ', 'NODELIST', 'NUM_GPUS',
         'NUM_NODES', 'PL_TORCH_DISTRIBUTED_BACKEND', 'BATCH_SIZE', 'EPOCHS_TO_BE_DONE',
         'TRAINING_SET_SIZE')
print(json.dumps({
    'environment': {name: os.environ.get(name) for name in names},
    'library': kubeprofiler.__file__, 'root': api.root_dir, 'data': os.listdir('/data'),
    'custom': sorted(os.listdir('/custom')), 'shm': os.statvfs('/dev/shm').f_blocks > 16384,
}), flush=True)
open('/custom/made', 'w').close()
"""
SERVE = """\
import http.server, threading
from kubernetesdlprofile import kubeprofiler
api = kubeprofiler.KubeProfiler()
server = http.server.HTTPServer(('', 6006), http.server.SimpleHTTPRequestHandler)
print('serving', flush=True)
server.serve_forever()
"""


@pytest.fixture
def lab(real: KubeletNode, idle: DaemonFixture) -> DaemonFixture:
    """A daemon that hands over to the real node, which has the files of its user."""
    if IMAGE not in real._ctr("-n", "k8s.io", "images", "ls", "-q").stdout:
        real.import_image(IMAGE, PILOT_TOOLS, {
            "/srv/own/kubernetesdlprofile/__init__.py": "",
            "/srv/own/kubernetesdlprofile/kubeprofiler.py": OLDER,
            "/usr/local/lib/python3/dist-packages/kubernetesdlprofile.py": OLDER,
        })  # fmt: skip
    for name in ("code", "snapshots", "datasets/cifar"):
        (idle.user / name).mkdir(parents=True)
    idle.up()
    home = str(idle.home.parent)
    added = idle.stoker(
        "nodes", "add", "lab", "kubernetes://", "--volume", f"{home}=hostPath:{home}",
    )  # fmt: skip
    assert added.returncode == 0, added.stderr
    assert "one pod per attempt" in added.stdout
    until(
        lambda: any(n["name"] == "lab" and n["state"] == "up" for n in idle.client.nodes()["nodes"])
    )
    return idle


def typed(box: DaemonFixture, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run a command that is installed with stoker."""
    program = Path(sys.executable).parent / words[0]
    return subprocess.run(
        [program, *words[1:]], cwd=box.user, capture_output=True, text=True, timeout=60,
        check=False, env=os.environ,
    )  # fmt: skip


def run_scheduler(box: DaemonFixture, script: str, *words: str) -> str:
    """Submit a script with the guide's command; return the id."""
    box.script("code/train.py", script)
    done = typed(
        box, "run-scheduler", "--image_name", IMAGE, "--script_path", "/custom/train.py",
        "--custom_dir", str(box.user / "code"), "--snapshots_dir", str(box.user / "snapshots"),
        *words, "first_try",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def pods(node: KubeletNode) -> dict[str, Any]:
    return node.cluster.pods()


def runs(pod: dict[str, Any]) -> bool:
    return pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]


def fetched(url: str) -> bytes:
    """Return a page; empty while there is none."""
    with contextlib.suppress(OSError), urlopen(url, timeout=5) as reply:
        return bytes(reply.read())
    return b""


def test_all_options_arrive_in_the_pod(lab: DaemonFixture, real: KubeletNode) -> None:
    id = run_scheduler(
        lab, DUMP, "--batch_size", "64", "--training_set_size", "45000", "--max_epochs", "3",
        "--estimated_memory", "6000", "--est_nhours", "2", "--is_single_gpu", "true",
        "--disable_gpu_sharing", "false",
    )  # fmt: skip
    end = lab.end_of("1", 120)
    logs = typed(lab, "scheduler-get-logs", id).stdout
    assert end["result"] == 0, logs
    until(lambda: not pods(real), 60)
    (line,) = [line for line in logs.splitlines() if line.startswith("{")]
    found = json.loads(line)
    environment = found.pop("environment")
    assert found == {
        "library": "/stoker/lib/kubernetesdlprofile/kubeprofiler.py", "root": f"/snapshots/{id}",
        "data": ["cifar"], "custom": ["train.py"], "shm": True,
    }  # fmt: skip
    assert (lab.user / "code/made").exists()
    assert json.loads(environment.pop("TF_CONFIG"))["task"] == {"type": "worker", "index": 0}
    assert environment.pop("MASTER_PORT").isdecimal()
    assert environment == {
        "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "1", "NODE_RANK": "0", "JOB_UUID": id,
        "JOB_RESTARTED": "FALSE", "RESERVED_MEM": "6000", "EPOCHS_DONE": "0",
        "HEARTBEAT_FREQ": "100", "NODELIST": "real1", "NUM_GPUS": "1", "NUM_NODES": "1",
        "PL_TORCH_DISTRIBUTED_BACKEND": "nccl", "BATCH_SIZE": "64", "EPOCHS_TO_BE_DONE": "3",
        "TRAINING_SET_SIZE": "45000",
    }  # fmt: skip
    assert end["hosts"] == ["real1"]
    listed = typed(lab, "scheduler-state", "--all_users", "--nlast", "1", "--extended").stdout
    assert f"{id} first_try" in listed
    assert ["estimated_memory", "6000"] in [line.split() for line in listed.splitlines()]


@pytest.mark.parametrize("script", [PLAIN, LIGHTNING, KERAS], ids=["plain", "lightning", "keras"])
def test_the_examples_of_the_guide_train_exact_epochs_however_often_their_pods_are_deleted(
    lab: DaemonFixture, real: KubeletNode, script: str
) -> None:
    id = run_scheduler(lab, script, "--max_epochs", str(EPOCHS), "--estimated_memory", "1000")
    chance = random.Random(script)
    for _ in range(3):
        epochs = lab.job("1")["training"]["epochs_done"] + chance.randrange(1, 3)
        until(lambda n=epochs: lab.job("1")["training"]["epochs_done"] >= n, 90)
        name = until(lambda: [each for each, pod in pods(real).items() if runs(pod)], 90)[0]
        real.cluster.kubectl("delete", "pod", name, "--wait=false")
        until(lambda n=name: n not in pods(real), 90)
    end = lab.end_of("1", 150)
    logs = typed(lab, "scheduler-get-logs", id).stdout
    assert end["result"] == 0, logs
    assert (end["attempt"], end["training"]["epochs_done"]) == (3, EPOCHS)
    assert f"trained {' '.join(map(str, range(EPOCHS)))} \n" in logs


def test_ports_are_published_while_the_job_runs(lab: DaemonFixture, real: KubeletNode) -> None:
    id = run_scheduler(lab, SERVE, "--port_mapping", "31346:6006")
    until(lambda: "serving" in lab.output("1"), 120)
    (service,) = real.cluster.get("services", "-l", "stoker.dev/install")
    assert service["spec"]["ports"][0]["nodePort"] == 31346
    proxy = ("--hostname-override=real1", "--proxy-mode=iptables", "--conntrack-max-per-core=0")
    kubeconfig = f"--kubeconfig={real.cluster.kubeconfig}"
    real.cluster.start_inside("kube-proxy", str(BIN / "kube-proxy"), kubeconfig, *proxy)
    try:
        page = until(lambda: fetched(f"http://{real.address}:31346/"), 60)
    finally:
        real.cluster.end_daemon("kube-proxy")
    assert b"DOCTYPE" in page
    assert typed(lab, "scheduler-cancel-job", id).returncode == 0
    assert lab.end_of("1", 60)["state"] == "CANCELLED"
    until(lambda: not real.cluster.get("services", "-l", "stoker.dev/install"), 60)
    until(lambda: not pods(real), 60)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--port_mapping", "8080:6006"), "NodePorts from 30000 to 32767 only"),
        (("--custom_dir", "/usr/share"), "the directory /usr/share is on this host only"),
    ],
)
def test_what_cannot_run_there_says_why(
    lab: DaemonFixture, words: tuple[str, ...], why: str
) -> None:
    run_scheduler(lab, PLAIN, *words)
    end = lab.end_of("1", 60)
    assert why in end["cause"]


def test_a_stop_request_reaches_the_script(lab: DaemonFixture, real: KubeletNode) -> None:
    """By what asks for one on a cluster: the deletion of the pod, long before its grace ends."""
    lab.script("code/page.py", block("python", "api.measure()"))
    slow = PLAIN.replace("time.sleep(0.15)", "time.sleep(0.3)")
    id = run_scheduler(lab, slow, "--max_epochs", "4")
    until(lambda: lab.job("1")["training"]["epochs_done"] == 1, 90)
    name = next(iter(pods(real)))
    real.cluster.kubectl("delete", "pod", name, "--wait=false")
    end = lab.end_of("1", 120)
    assert (end["result"], end["training"]["epochs_done"]) == (0, 4)
    assert (lab.user / "snapshots" / id / "cifar_net.pth").read_text() == "0 1 2 3 "
