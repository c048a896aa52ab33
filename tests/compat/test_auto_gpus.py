"""`auto` on GPUs that a driver shows: which are free, and how often one has to look."""

import ctypes
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from compat.auto_env import AutoEnv, open_auto_env
from e2e.daemon_fixture import until
from fakes.nvml import FakeNvml, Gpu, Process, nvml

__all__ = ["nvml"]

pytestmark = pytest.mark.e2e
TOTAL = 10_000
IN_OPEN = 0x20


def gpus(count: int, **changed: Gpu) -> list[Gpu]:
    """So many idle GPUs, some of them otherwise."""
    idle = {f"gpu{n}": Gpu(uuid=f"GPU-{n}", memory_total=TOTAL) for n in range(count)}
    return list({**idle, **changed}.values())


def used(number: int, memory: int = 0, load: int = 0, *processes: Process) -> dict[str, Gpu]:
    """A GPU that others use so much."""
    return {
        f"gpu{number}": Gpu(
            uuid=f"GPU-{number}", memory_total=TOTAL, memory_used=memory, utilization=load,
            processes=processes,
        )
    }  # fmt: skip


@pytest.fixture
def here(nvml: FakeNvml) -> Iterator[AutoEnv]:
    """A home whose processes see the stand-in driver."""
    names = ("LD_LIBRARY_PATH", "PYTHONPATH", "FAKE_NVML")
    with open_auto_env(**{name: nvml.env()[name] for name in names}) as env:
        yield env


@pytest.fixture
def stranger() -> Iterator[int]:
    """The pid of a process that is none of ours."""
    process = subprocess.Popen(["sleep", "600"], env={"PATH": os.environ["PATH"]})
    yield process.pid
    process.kill()
    process.wait()


def waits_for(here: AutoEnv, id: int, text: str) -> None:
    """A task waits, and this is why."""
    until(lambda: text in str(here.client.why(str(id))))
    assert here.state(id) == "PENDING"


def test_aut_06_a_gpu_is_free_strictly_below_both_thresholds(
    here: AutoEnv, nvml: FakeNvml, stranger: int
) -> None:
    nvml.set(gpus(1, **used(0, memory=TOTAL // 10)))
    here.serve("--gpus", 0, "--port", 0)
    task = here.task("echo $CUDA_VISIBLE_DEVICES")
    waits_for(here, task, "other processes (10% of its memory)")
    nvml.set(gpus(1, **used(0, memory=TOTAL // 10 - 1, load=9)))
    assert here.ended(task)["state"] == "COMPLETED"
    nvml.set(gpus(1, **used(0, load=10)))
    until(lambda: here.client.gpus()["gpus"][0]["state"] == "foreign")
    task = here.task("true")
    waits_for(here, task, "other processes (10% load)")
    # Somebody who uses little is no reason to leave it alone: only the shares count.
    nvml.set(gpus(1, **used(0, 900, 0, Process(pid=stranger, memory=900))))
    assert here.ended(task)["state"] == "COMPLETED"
    assert "a GPU is free below 10% load and 10% memory" in here.out.read_text()


def test_aut_06_the_thresholds_can_be_chosen(here: AutoEnv, nvml: FakeNvml) -> None:
    nvml.set(gpus(2, **used(0, memory=6000), **used(1, memory=4999, load=29)))
    here.serve("--gpus", 0, 1, "--port", 0, "--max-load", 0.3, "--max-memory", 0.5)
    assert here.result("echo $CUDA_VISIBLE_DEVICES") == "1\n"
    assert here.client.daemon()["thresholds"] == {"load": 0.3, "memory": 0.5, "processes": False}


def test_aut_08_only_the_gpus_that_were_named_are_used(here: AutoEnv, nvml: FakeNvml) -> None:
    nvml.set(gpus(8))
    here.serve("--gpus", 4, 5, "--port", 0)
    assert here.result("echo $CUDA_VISIBLE_DEVICES", "-n", 2) == "4,5\n"
    assert "among those named" in here.refused("run", "-c", "true", "-n", 3, code=2)


def test_aut_08_a_busy_gpu_is_not_replaced_by_an_unnamed_gpu(here: AutoEnv, nvml: FakeNvml) -> None:
    nvml.set(gpus(8, **used(0, memory=9000), **used(1, load=90)))
    here.serve("--gpus", 0, 1, 2, 3, "--port", 0)
    assert here.result("echo $CUDA_VISIBLE_DEVICES", "-n", 2) == "2,3\n"
    waits_for(here, here.task("true", "-n", 3), "needs 3 GPUs")


def test_a_gpu_that_a_machine_with_gpus_lacks_is_not_made_up(here: AutoEnv, nvml: FakeNvml) -> None:
    nvml.set(gpus(2))
    assert "no GPU 7: it has 0, 1" in here.refused("server", "--gpus", 0, 7, "--port", 0, code=2)
    here.serve("--gpus", 0, "--port", 0)
    assert sorted(gpu["id"] for gpu in here.client.gpus()["gpus"]) == ["0", "1"]


def test_aut_12_gpus_are_looked_at_now_and_then_not_all_the_time(
    here: AutoEnv, nvml: FakeNvml
) -> None:
    nvml.set(gpus(1, **used(0, memory=9000)))
    here.serve("--gpus", 0, "--port", 0)
    waits_for(here, here.task("true"), "other processes (90% of its memory)")
    with opens(nvml.file.parent) as count:
        until(count)  # a look has just begun
        begun, before = time.monotonic(), count()
        until(lambda: time.monotonic() - begun > 3)
        rate = (count() - before) / (time.monotonic() - begun)
    # The driver's stand-in opens its file for every call, some twenty times for a look.
    assert 0 < rate < 60, "the old server started 200 processes a second"


class opens:  # noqa: N801 - reads as a function
    """How often files of a directory were opened since the beginning of the block."""

    def __init__(self, directory: Path) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self.libc.inotify_add_watch(self.fd, os.fsencode(directory), IN_OPEN) >= 0
        self.seen = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.fd)

    def __call__(self) -> int:
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return self.seen
        while data:
            length = struct.unpack_from("iIII", data)[3]
            data = data[16 + length :]
            self.seen += 1
        return self.seen
