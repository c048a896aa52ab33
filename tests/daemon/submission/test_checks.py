"""Admission checks: programs, container engines, GPUs of unknown size."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.scenario import Scenario
from stoker.core.events import NodeJoined
from stoker.core.model.resources import DeviceFacts, GpuRequest, NodeFacts, ResourceRequest
from stoker.core.model.spec import Container, Spec
from stoker.core.model.units import BadValue
from stoker.daemon.submission.checks import check_program, whole_gpus_if_sizes_unknown


def check(path: Path, *argv: str, image: str = "", remotes: bool = False) -> list[str]:
    spec = Spec(
        kind="argv", user="ann", directory=str(path), shell="sh", environment="", name="x",
        request=ResourceRequest(), container=Container(image) if image else None,
    )  # fmt: skip
    state: Any = SimpleNamespace(record=SimpleNamespace(remotes={"gpu1"} if remotes else {}))
    environment = b"A=1\0PATH=" + os.fsencode(f"{path}/bin")
    return check_program(argv, spec, environment, state, "")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tool").touch(0o755)
    (tmp_path / "train.sh").touch(0o755)
    return tmp_path


@pytest.mark.parametrize("word", ["tool", "./train.sh", "bin/tool"])
def test_a_program_that_exists_is_accepted(directory: Path, word: str) -> None:
    assert check(directory, word, "--lr", "1") == []


@pytest.mark.parametrize("word", ["nosuch.sh", "./nosuch.sh", "pyhton", "/no/such", "train.sh"])
def test_a_program_that_does_not_exist_is_rejected(directory: Path, word: str) -> None:
    with pytest.raises(BadValue, match="neither a file nor a program"):
        check(directory, word)


def test_other_nodes_may_have_the_program(directory: Path) -> None:
    (warning,) = check(directory, "nvidia-smi", remotes=True)
    assert "other nodes" in warning


def test_a_container_needs_an_engine(directory: Path) -> None:
    with pytest.raises(BadValue, match="podman"):
        check(directory, "nosuch", image="py:3")
    (directory / "bin/podman").touch(0o755)
    assert check(directory, "nosuch", image="py:3") == []


@pytest.mark.parametrize("memory", [None, 24576])
def test_memory_on_gpus_of_unknown_size_means_whole_gpus(memory: int | None) -> None:
    scenario = Scenario()
    scenario.tell(
        NodeJoined(at=0, facts=NodeFacts("box", {"gpu": (DeviceFacts("0", memory=memory),)}))
    )
    requested = ResourceRequest(gpus=GpuRequest(500, memory=8192, shareable=True))
    request, notes = whole_gpus_if_sizes_unknown(requested, scenario.state)
    if memory is None:
        assert request.gpus == GpuRequest(1000)
        assert "--gpu-memory-size" in notes[0]
    else:
        assert (request, notes) == (requested, [])
