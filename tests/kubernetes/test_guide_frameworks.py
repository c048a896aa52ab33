"""The guide's three examples with the real frameworks, in pods that are deleted at random moments.

The image has no frameworks: where users have their data, these pods have the packages of this host.
"""

import random
import re
import sys
import sysconfig
from pathlib import Path

import pytest

from conftest import ROOT
from e2e.daemon_fixture import DaemonFixture, until
from frameworks.bench import PROGRAMS
from frameworks.saves import Saves
from kubernetes.actions import add_reporting_cluster
from kubernetes.kubelet_node import KubeletNode
from kubernetes.python_image import PILOT_TOOLS, shared_libraries
from kubernetes.test_run_scheduler import run_scheduler, runs, typed

pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(900),
    pytest.mark.needs(".venv-frameworks/.installed"),
]
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
PACKAGES = ROOT / ".venv-frameworks/lib" / VERSION / "site-packages"
IMAGE = "localhost/guide:1"
"""The image of `run_scheduler`."""
BINARIES = ("torch/_C.*.so", "torch/lib/*.so", "tensorflow/python/_pywrap_*.so",
            "tensorflow/*.so.2", "numpy/_core/*.so")  # fmt: skip
ENVIRONMENT = (
    "OMP_NUM_THREADS=1", "TF_CPP_MIN_LOG_LEVEL=2",
    "TF_USE_LEGACY_KERAS=1",  # the guide's example is for Keras 2
    "GLOO_SOCKET_IFNAME=lo",
)  # fmt: skip
PREEMPTIONS = 3
SECONDS = 240.0
"""An import of TensorFlow on a busy host."""


@pytest.fixture
def lab(real: KubeletNode, idle: DaemonFixture) -> DaemonFixture:
    paths = {str(path) for pattern in BINARIES for path in PACKAGES.glob(pattern)}
    libraries = {
        name: Path(path)
        for name, path in shared_libraries(paths).items()
        if not path.startswith(str(PACKAGES))
    }
    purelib = sysconfig.get_path("purelib", vars={"base": sys.base_prefix})
    real.import_image(
        IMAGE, PILOT_TOOLS, {f"{purelib}/frameworks.pth": "/data\n"},
        trees=libraries, environment=ENVIRONMENT,
    )  # fmt: skip
    (idle.user / "datasets").mkdir(parents=True)
    for name in ("code", "snapshots"):
        (idle.user / name).mkdir()
    datasets = str((idle.user / "datasets").relative_to(idle.home.parent))
    add_reporting_cluster(idle, real.cluster, IMAGE, **{datasets: str(PACKAGES)})
    return idle


def epochs_done(box: DaemonFixture) -> int:
    return int(box.job("1")["training"]["epochs_done"])


def preempt_at_random(box: DaemonFixture, real: KubeletNode, chance: random.Random) -> None:
    """Delete the pod of the job several times, and wait for its end."""
    for _ in range(PREEMPTIONS):
        epochs = epochs_done(box) + chance.randrange(3)
        until(lambda n=epochs: epochs_done(box) >= n or box.job("1")["result"] is not None, SECONDS)
        name = until(lambda: [each for each, pod in real.cluster.pods().items() if runs(pod)], 90)
        real.cluster.kubectl("delete", "pod", name[0], "--wait=false")
        until(lambda n=name[0]: n not in real.cluster.pods(), SECONDS)
    end = box.end_of("1", SECONDS)
    assert (end["result"], end["attempt"]) == (0, PREEMPTIONS), box.output("1")


def outputs(box: DaemonFixture) -> str:
    """Return what all attempts have printed."""
    pieces = (b"".join(box.client.log("1", attempt=n)) for n in range(PREEMPTIONS + 1))
    return b"".join(pieces).decode(errors="replace").replace("\r", "\n").replace("\b", "")


def run(box: DaemonFixture, program: str, epochs: int, batch: int, size: int) -> Path:
    """Submit an example; return the directory of its snapshots."""
    id = run_scheduler(
        box, (PROGRAMS / f"guide_{program}.py").read_text(), "--max_epochs", str(epochs),
        "--batch_size", str(batch), "--training_set_size", str(size),
    )  # fmt: skip
    snapshots = box.user / "snapshots" / id
    snapshots.mkdir(exist_ok=True)
    return snapshots


def test_the_pytorch_example(lab: DaemonFixture, real: KubeletNode) -> None:
    epochs = 40
    saves = Saves(run(lab, "pytorch", epochs, 1, 1500), "cifar_net.pth")
    preempt_at_random(lab, real, random.Random(1))
    assert (saves(), epochs_done(lab)) == (epochs, epochs)
    saves.close()


def test_the_lightning_example(lab: DaemonFixture, real: KubeletNode) -> None:
    epochs, batches = 30, 2
    snapshots = run(lab, "lightning", epochs, 4, 4 * batches)
    preempt_at_random(lab, real, random.Random(2))
    names = [path.name for path in snapshots.glob("lightning_logs/*/checkpoints/*")]
    found = [re.fullmatch(r"epoch=(\d+)-step=(\d+)\.ckpt", name) for name in names]
    ends = sorted((int(match[1]) + 1, int(match[2])) for match in found if match)
    assert all(steps == done * batches for done, steps in ends), ends
    assert (ends[-1][0], epochs_done(lab)) == (epochs, epochs)


def test_the_tensorflow_example(lab: DaemonFixture, real: KubeletNode) -> None:
    epochs = 150
    run(lab, "tensorflow", epochs, 1, 64)
    preempt_at_random(lab, real, random.Random(3))
    text = outputs(lab)
    lines = re.findall(rf"Epoch (\d+)/{epochs}\n((?:.*\n)*?).*64/64 .*accuracy", text)
    assert [int(number) for number, _ in lines] == list(range(1, epochs + 1))
    assert epochs_done(lab) == epochs
    assert text.count("1/1 - ") == 1, "what comes after the training"
    assert "1/1 - " in typed(lab, "scheduler-get-logs", lab.job("1")["training"]["uuid"]).stdout
