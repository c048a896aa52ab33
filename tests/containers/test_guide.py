"""What the page on run-scheduler tells people to type, typed: its images, its script, TensorBoard.

Everything comes out of the page. Replaced are only what must be fetched (an image, packages of
pip), the engine's name, names that tests would share, and ports.
"""

import contextlib
import glob
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from conftest import ROOT
from containers.image import IMAGE, Podman, libraries_of
from containers.test_jobs import free_port, told
from e2e.daemon_fixture import DaemonFixture, until
from fakes.nvml import FakeNvml, Gpu, nvml

__all__ = ["nvml"]

PAGE = (ROOT / "docs" / "run-scheduler.md").read_text()
DOCKERFILES = dict(re.findall(r"(?ms)^([^\n]+):\n\n```dockerfile\n(.*?)```", PAGE))
FROM = re.compile(r"^FROM \S+$", re.MULTILINE)
FETCHED = re.compile(r"^RUN pip install .*\n", re.MULTILINE)
EXAMPLE = """\
import json, os
from pathlib import Path
from kubernetesdlprofile import kubeprofiler
api = kubeprofiler.KubeProfiler()
for epoch in range(api.EPOCHS - api.EPOCHS_DONE):
    api.start_epoch()
    for batch in range(3):
        api.measure()
    api.end_epoch()
    Path(api.root_dir, "model.pth").write_text(str(epoch + 1))
print(json.dumps({
    "sizes": [api.EPOCHS, api.BATCH_SIZE, api.TRAINING_SET_SIZE], "id": api.JOBID,
    "root": api.root_dir, "library": kubeprofiler.__file__, "here": os.getcwd(),
}))
"""
OLDER = "raise ImportError('a library that looks for another scheduler')\n"
AROUND = """\
import glob, json, os
loader = range(3)
def save(path):
    open(path, "w").close()
{script}
print(json.dumps({{"data": os.listdir("/data"), "saved": glob.glob("*", root_dir=api.root_dir),
                   "epochs": epoch + 1, "gpu": os.environ["NVIDIA_VISIBLE_DEVICES"]}}))
"""
GATED = """\
import os, time
class Loader:
    def __iter__(self):
        print("epoch", epoch, flush=True)
        while not os.path.exists(f"/custom/{epoch}"):
            yield time.sleep(0.02)
loader = Loader()
def save(path):
    open(path, "w").close()
"""
TOLD = "print(os.environ['JOB_RESTARTED'], api.RESTARTED, api.EPOCHS_DONE, api.ckpt_path)"
LOG = r"""
import os, struct, time

def checked(data):
    value = 0xFFFFFFFF  # CRC-32C, rotated and moved as files of TensorFlow have it
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    value ^= 0xFFFFFFFF
    return data + struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)

def field(tag, data):
    return bytes([tag, len(data)]) + data

def event(step, what):
    data = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + bytes([step]) + what
    return checked(struct.pack("<Q", len(data))) + checked(data)

os.makedirs("/custom/logs")
with open("/custom/logs/events.out.tfevents.1.here", "wb") as file:
    file.write(event(0, field(0x1A, b"brain.Event:2")))
    for step, loss in enumerate((0.5, 0.25, 0.125)):
        value = field(0x0A, b"loss") + b"\x15" + struct.pack("<f", loss)
        file.write(event(step, field(0x2A, field(0x0A, value))))
print("{}")
"""
BOARD = f"""\
FROM {IMAGE}
COPY files /
ENV PYTHONPATH=/srv/own:/board:/packages
"""
START_BOARD = '#!/bin/sh\nexec python3 -m tensorboard.main "$@"\n'
NO_TENSORFLOW = "raise ImportError('it would take half of the time of this suite to load')\n"
FRAMEWORKS = ROOT / ".venv-frameworks"
PACKAGES = FRAMEWORKS / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def block(kind: str, *words: str) -> str:
    """The only block of the page that has these words."""
    found = [
        text
        for text in re.findall(rf"(?ms)^```{kind}\n(.*?)```", PAGE)
        if all(word in text for word in words)
    ]
    assert len(found) == 1, found
    return str(found[0])


def typed(text: str, box: DaemonFixture) -> str:
    """Type lines of the page, in the user's directory; return what they print."""
    done = subprocess.run(
        ["sh", "-ec", text],
        cwd=box.user,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(podman: Podman, directory: Path, tag: str, text: str) -> None:
    (directory / "Dockerfile").write_text(text)
    podman.run("build", "--quiet", "--tag", tag, str(directory))


@pytest.fixture
def older(podman: Podman, tmp_path: Path) -> str:
    """An image into which the library of another scheduler was installed."""
    package = tmp_path / "kubernetesdlprofile"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "kubeprofiler.py").write_text(OLDER)
    target = "/srv/own/kubernetesdlprofile"
    build(podman, tmp_path, "older:1", f"FROM {IMAGE}\nCOPY {package.name} {target}\n")
    return "older:1"


def test_the_page_has_an_image_for_each_framework() -> None:
    assert list(DOCKERFILES) == ["PyTorch with Lightning", "TensorFlow", "Plain PyTorch"]
    assert all("kubernetesdlprofile" not in text for text in DOCKERFILES.values())


@pytest.mark.parametrize("name", DOCKERFILES)
def test_kub_66_the_image_of_a_framework_trains(ship: DaemonFixture, older: str, name: str) -> None:
    """Also one that has its own library in it, as the older guide has it."""
    text, replaced = FROM.subn(f"FROM {older}", FETCHED.sub("", DOCKERFILES[name]))
    assert replaced == 1
    assert "RUN" not in text
    ship.script("Dockerfile", text)
    (ship.user / "works").mkdir()
    ship.script("works/profilerexample.py", EXAMPLE)
    lines = block("bash", "podman build", "run-scheduler")
    tag = f"guide-{name.lower().replace(' ', '-')}:1"
    id = typed(lines.replace("myimage:1", tag), ship).splitlines()[-1]
    found = told(ship, "1")
    assert found == {
        "sizes": [5, 128, 50000], "id": id, "root": f"/snapshots/{id}", "here": "/",
        "library": "/stoker/lib/kubernetesdlprofile/kubeprofiler.py",
    }  # fmt: skip
    assert ship.job("1")["name"] == "first_try"
    assert ship.job("1")["training"]["epochs_done"] == 5
    assert (ship.state / "checkpoints" / id / "model.pth").read_text() == "5"


def test_kub_06_datasets_of_the_home_are_data(
    podman: Podman, idle: DaemonFixture, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the page's first command, with the page's script."""
    for name, value in podman.environment.items():
        monkeypatch.setenv(name, value)
    nvml.set([Gpu(uuid="GPU-a")])
    started = idle.stoker("daemon", "start", env=nvml.env())
    assert started.returncode == 0, started.stderr
    for each in ("code", "snapshots", "datasets/cifar"):
        (idle.user / each).mkdir(parents=True)
    idle.script("code/train.py", AROUND.format(script=block("python", "api.measure()")))
    id = typed(block("bash", "my_experiment").replace("myimage:1", IMAGE), idle).strip()
    found = told(idle, "1")
    assert found == {"data": ["cifar"], "saved": ["model.pth"], "epochs": 20, "gpu": "GPU-a"}
    assert glob.glob("*", root_dir=idle.user / "snapshots" / id) == ["model.pth"]
    assert idle.job("1")["training"]["epochs_done"] == 20


def test_kub_18_a_training_in_a_container_makes_room_and_goes_on(ship: DaemonFixture) -> None:
    """By the page's script, whose epochs end when the test says so."""
    (ship.user / "code").mkdir()
    (ship.user / "snapshots").mkdir()
    script = block("python", "api.measure()").replace("for epoch", f"{TOLD}\nfor epoch")
    ship.script("code/train.py", GATED + script)
    lines = block("bash", "my_experiment").replace("myimage:1", IMAGE)
    lines = lines.replace(" --estimated_memory 6000", "").replace("max_epochs 20", "max_epochs 3")
    id = typed(lines, ship).strip()
    root = f"/snapshots/{id}"
    ship.says("1", "epoch 0")
    urgent = ship.submit("--priority", "1000", "--gpus", "4", "--image", IMAGE, "echo urgent")
    until(lambda: ship.job("1")["training"]["stopping"])
    ship.script("code/0", "")
    ship.end_of(urgent)
    ship.says("1", "epoch 1")
    for epoch in ("1", "2"):
        ship.script(f"code/{epoch}", "")
    end = ship.end_of("1")
    assert (end["state"], end["training"]["epochs_done"]) == ("COMPLETED", 3)
    said = typed(f"scheduler-get-logs {id}", ship)
    assert [line for line in said.splitlines() if not line.startswith(("stoker:", "["))] == [
        f"FALSE False 0 {root}/tf_ckpts", "epoch 0",
        f"TRUE True 1 {root}/model.pth", "epoch 1", "epoch 2",
    ]  # fmt: skip


@pytest.mark.proof
@pytest.mark.needs(".venv-frameworks/.installed", ".venv-frameworks/tensorboard/tensorboard")
def test_kub_23_tensorboard_shows_what_a_job_logs(
    podman: Podman, ship: DaemonFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ship.user / "code").mkdir()
    ship.script("code/log.py", LOG)
    script = ("--script_path", "/custom/log.py", "--custom_dir", "~/code")
    typed(f"run-scheduler --image_name {IMAGE} {' '.join(script)} logs", ship)
    make_board(podman, tmp_path)
    told(ship, "1")
    for name, value in podman.networked.items():
        monkeypatch.setenv(name, value)
    port = free_port()
    lines = block("bash", "docker run", "tensorboard").replace("docker", "podman")
    for words, instead in {
        "nvcr.io/nvidia/tensorflow:21.09-tf2-py3": "board:test",
        "-p 31346:": f"-p 127.0.0.1:{port}:",
        "run -d ": f"run -d -v {FRAMEWORKS}/tensorboard:/board:ro -v {PACKAGES}:/packages:ro ",
    }.items():
        assert lines.count(words) == 1
        lines = lines.replace(words, instead)
    try:
        typed(lines, ship)
        values = until(lambda: scalars(port, "loss") or stopped("board", ship))
        assert [(step, value) for _, step, value in values] == [(0, 0.5), (1, 0.25), (2, 0.125)]
    finally:
        typed(block("bash", "rm -f board").replace("docker", "podman"), ship)
    assert scalars(port, "loss") is None


def stopped(container: str, box: DaemonFixture) -> bool:
    """Whether it runs no more, so that there is nothing to wait for: then say why."""
    running = typed(f"podman inspect --format '{{{{.State.Running}}}}' {container}", box).strip()
    assert running == "true", typed(f"podman logs {container} 2>&1", box)
    return False


def make_board(podman: Podman, directory: Path) -> None:
    """An image that can run the TensorBoard of the frameworks, but not TensorFlow."""
    files = directory / "files"
    for path, text in (
        ("usr/local/bin/tensorboard", START_BOARD),
        ("srv/own/tensorflow.py", NO_TENSORFLOW),
    ):
        (files / path).parent.mkdir(parents=True)
        (files / path).write_text(text)
        (files / path).chmod(0o755)
    binaries = [str(each) for part in ("numpy", "grpc") for each in (PACKAGES / part).rglob("*.so")]
    for each in libraries_of(binaries):
        if not each.startswith(str(PACKAGES)):
            (files / each.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(each, files / each.lstrip("/"))
    build(podman, directory, "board:test", BOARD)


def scalars(port: int, tag: str) -> list[tuple[float, int, float]] | None:
    """What TensorBoard has of one curve; None if there is no TensorBoard, or not yet."""
    where = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars?run=.&tag={tag}"
    with contextlib.suppress(OSError, ValueError):
        with urlopen(where, timeout=5) as reply:
            found: Any = json.load(reply)
        return [(float(at), int(step), float(value)) for at, step, value in found]
    return None
