"""GPUs of a stand-in driver: free, used by jobs or foreign processes, lost and hanging."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.daemon_fixture import DaemonFixture, as_json, until
from e2e.other_users import other_user
from fakes.nvml import FakeNvml, Gpu, Process
from stoker.daemon.gpus.monitor import STALE_SECONDS

A = Gpu(uuid="GPU-aaaa", name="NVIDIA A100-SXM4-80GB", memory_total=81920, pci="0000:01:00.0")
B = Gpu(uuid="GPU-bbbb", name="NVIDIA GeForce RTX 3090", memory_total=24576, pci="0000:02:00.0")
HOLDS = "echo ready; exec sleep 300"


@pytest.fixture
def foreign_process() -> Iterator[int]:
    """The pid of a process that belongs to no job."""
    process = subprocess.Popen(["sleep", "600"], env={"PATH": os.environ["PATH"]})
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def quick(idle: DaemonFixture) -> DaemonFixture:
    """A home that releases GPUs of foreign processes without delay."""
    (idle.home / "config.toml").write_text("[foreign]\nleave_seconds = 0\n")
    return idle


def start(box: DaemonFixture, nvml: FakeNvml, *args: str, **env: str) -> DaemonFixture:
    """Start a daemon with the stand-in driver."""
    done = box.stoker("daemon", "start", *args, env={**nvml.env(), **env})
    assert done.returncode == 0, done.stderr
    return box


def used(gpu: Gpu, pid: int, memory: int = 4000, **more: Any) -> Gpu:
    """Return the GPU with a process on it."""
    fields = {name: getattr(gpu, name) for name in ("uuid", "name", "memory_total", "pci")}
    return Gpu(**fields, memory_used=memory, processes=(Process(pid=pid, memory=memory),), **more)


def test_gpus_are_shown_with_what_the_driver_knows(idle: DaemonFixture, nvml: FakeNvml) -> None:
    nvml.set([A, B])
    box = start(idle, nvml)
    first, second = as_json(box.stoker("gpus", "--json"))["gpus"]
    assert (first["id"], first["uuid"], first["memory"]) == ("0", "GPU-aaaa", 81920)
    assert "A100" in first["model"]
    assert second["uuid"] == "GPU-bbbb"
    assert (first["state"], first["temperature"], first["utilization"]) == ("free", 40, 0)
    assert "3090" in box.stoker("gpus").stdout


def test_jobs_get_the_model_and_the_memory_they_ask_for(
    idle: DaemonFixture, nvml: FakeNvml
) -> None:
    nvml.set([B, A])
    box = start(idle, nvml)
    job = box.result("--gpus", "a100:1", "echo $CUDA_VISIBLE_DEVICES $STOKER_GPU_UUIDS")
    assert box.output(job["id"]) == "1 GPU-aaaa\n"
    job = box.result("--gpus", "1", "--gpus-min-vram", "40G", "echo $CUDA_VISIBLE_DEVICES")
    assert box.output(job["id"]) == "1\n"
    assert box.refused("--gpus", "h100:1", "true")[0] == 6
    assert box.refused("--gpus", "2", "--gpus-min-vram", "40G", "true")[0] == 6


def test_jobs_share_a_gpu_by_memory(idle: DaemonFixture, nvml: FakeNvml) -> None:
    nvml.set([B])
    box = start(idle, nvml)
    jobs = [box.submit("--gpus", "0.3", "--gpu-memory", "10G", HOLDS) for _ in range(3)]
    until(lambda: [box.job(job)["state"] for job in jobs] == ["RUNNING", "RUNNING", "PENDING"])


def test_a_gpu_with_a_foreign_process_is_not_allocated_until_it_exits(
    quick: DaemonFixture, nvml: FakeNvml, foreign_process: int
) -> None:
    nvml.set([used(A, foreign_process)])
    box = start(quick, nvml)
    job = box.submit("--gpus", "1", "true")
    text = until(lambda: (w := str(box.client.why(job))) and f"pid {foreign_process}" in w and w)
    assert "sleep" in text
    (gpu,) = box.gpus().values()
    assert (gpu["state"], gpu["free"], gpu["held"]) == ("foreign", "0", "0")
    assert box.client.nodes()["nodes"][0]["resources"]["gpu"]["free"] == "0"
    assert "GPU 0 becomes free, now used by" in box.stoker("why", job).stdout
    assert gpu["foreign"][0]["pid"] == foreign_process
    assert box.job(job)["state"] == "PENDING"
    nvml.set([A])
    assert box.end_of(job)["state"] == "COMPLETED"


def test_a_foreign_process_that_appears_beside_a_job_does_not_end_it(
    quick: DaemonFixture, nvml: FakeNvml, foreign_process: int
) -> None:
    nvml.set([A])
    box = start(quick, nvml)
    job = box.submit("--gpus", "1", "echo ready; until [ -e go ]; do sleep 0.05; done")
    box.says(job, "ready")
    nvml.set([used(A, foreign_process)])
    until(lambda: box.gpus()["0"]["foreign"])
    assert box.job(job)["state"] == "RUNNING"
    (box.user / "go").touch()
    assert box.end_of(job)["state"] == "COMPLETED"


def test_a_process_of_a_job_on_a_gpu_is_not_foreign(quick: DaemonFixture, nvml: FakeNvml) -> None:
    nvml.set([A])
    box = start(quick, nvml)
    job = box.submit("--gpus", "0.5", HOLDS)
    box.says(job, "ready")
    nvml.set([used(A, box.pid_of(job), memory=30000)])
    until(lambda: box.gpus()["0"]["memory_used"] == 30000)
    assert box.gpus()["0"]["foreign"] == []
    box.becomes(box.submit("--gpus", "0.5", HOLDS), "RUNNING")


def test_feed_uses_the_named_gpus_with_one_warning(
    idle: DaemonFixture, nvml: FakeNvml, foreign_process: int
) -> None:
    nvml.set([used(A, foreign_process), B])
    lines = "echo $CUDA_VISIBLE_DEVICES >> seen\n" * 4
    done = idle.stoker("feed", "--gpus", "0", input=lines, env=nvml.env())
    assert done.returncode == 0, done.stderr
    assert (idle.user / "seen").read_text() == "0\n" * 4
    assert done.stderr.count(f"pid {foreign_process}") == 1


def test_a_mig_instance_is_addressed_by_its_uuid(idle: DaemonFixture, nvml: FakeNvml) -> None:
    parts = tuple(
        Gpu(uuid=f"MIG-{n}", name="NVIDIA A100 MIG 3g.40gb", memory_total=40448) for n in "12"
    )
    nvml.set([Gpu(uuid="GPU-aaaa", name="NVIDIA A100", memory_total=81920, mig=parts)])
    box = start(idle, nvml)
    job = box.result("--gpus", "2", "echo $CUDA_VISIBLE_DEVICES")
    assert box.output(job["id"]) == "MIG-1,MIG-2\n"


def test_values_that_the_driver_does_not_support_are_unknown(
    idle: DaemonFixture, nvml: FakeNvml
) -> None:
    nvml.set([Gpu(uuid="GPU-old", not_supported=("utilization", "power", "temperature"))])
    box = start(idle, nvml)
    gpu = until(lambda: box.gpus().get("0"))
    assert gpu["utilization"] is None
    assert gpu["power"] is None
    assert box.result("--gpus", "1", "true")["state"] == "COMPLETED"


def test_a_driver_that_hangs_does_not_hang_the_daemon(idle: DaemonFixture, nvml: FakeNvml) -> None:
    nvml.set([A])
    box = start(idle, nvml)
    job = box.submit("--gpus", "1", "echo ready; until [ -e go ]; do sleep 0.05; done; exit 3")
    box.says(job, "ready")
    nvml.set([A], hang="nvmlDeviceGetMemoryInfo")
    time.sleep(2.5)  # so that a poll is under way
    queried_at = time.monotonic()
    assert box.client.jobs()["jobs"]
    assert box.result("true")["state"] == "COMPLETED"
    (box.user / "go").touch()
    assert box.end_of(job)["result"] == 3
    assert time.monotonic() - queried_at < 9, "something waited for the driver"


def test_a_driver_that_hangs_from_the_start_does_not_keep_the_daemon_from_starting(
    idle: DaemonFixture, nvml: FakeNvml
) -> None:
    nvml.set([A], hang="any")
    box = start(idle, nvml)
    assert box.result("true")["state"] == "COMPLETED"
    assert box.refused("--gpus", "1", "true")[0] == 6


def test_gpus_of_a_lost_driver_are_not_used_until_it_returns(
    quick: DaemonFixture, nvml: FakeNvml
) -> None:
    nvml.set([A])
    box = start(quick, nvml)
    job = box.submit("--gpus", "1", "echo ready; until [ -e go ]; do sleep 0.05; done; exit 3")
    box.says(job, "ready")
    nvml.set([], gone=True)
    until(lambda: box.client.gpus()["note"])
    (box.user / "go").touch()
    assert box.end_of(job)["result"] == 3
    blocked = box.submit("--gpus", "1", "true")
    time.sleep(1)
    assert box.job(blocked)["state"] == "PENDING"
    nvml.set([A])
    assert box.end_of(blocked)["state"] == "COMPLETED"


def test_an_inherited_cuda_visible_devices_limits_the_gpus(
    idle: DaemonFixture, nvml: FakeNvml
) -> None:
    nvml.set([A, B])
    box = start(idle, nvml, CUDA_VISIBLE_DEVICES="1")
    assert list(box.gpus()) == ["1"]
    job = box.result("--gpus", "1", "echo $CUDA_VISIBLE_DEVICES")
    assert box.output(job["id"]) == "1\n"
    assert box.refused("--gpus", "2", "true")[0] == 6


def test_an_empty_inherited_limit_leaves_no_gpu(idle: DaemonFixture, nvml: FakeNvml) -> None:
    nvml.set([A])
    box = start(idle, nvml, CUDA_VISIBLE_DEVICES="")
    assert box.gpus() == {}


def test_gpus_named_at_the_start_are_the_only_ones(idle: DaemonFixture, nvml: FakeNvml) -> None:
    nvml.set([A, B])
    box = start(idle, nvml, "--gpus", "1")
    assert [(id, gpu["uuid"]) for id, gpu in box.gpus().items()] == [("1", "GPU-bbbb")]


# ------------------------------------------------------------------------- another user


@pytest.mark.needs("useradd", "userdel")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can make users")
def test_the_daemons_of_two_users_do_not_take_the_same_gpu(
    quick: DaemonFixture, nvml: FakeNvml
) -> None:
    uuid = f"GPU-two-users-{os.getpid()}"
    nvml.set([Gpu(uuid=uuid)])
    with other_user(nvml) as them:
        try:
            box = start(quick, nvml)
            first = box.submit("--gpus", "1", "echo ready; until [ -e go ]; do sleep 0.05; done")
            box.says(first, "ready")
            submitted = them.stoker("submit", "--gpus", "1", "until [ -e go ]; do sleep 0.05; done")
            assert submitted.returncode == 0, submitted.stderr
            until(lambda: "now used by the stoker of root" in them.stoker("why", "1").stdout)
            assert them.stoker("gpus", "--no-header").stdout.split()[-4:] == [
                "foreign", "0", "root:", "stoker",
            ]  # fmt: skip
            (box.user / "go").touch()
            box.end_of(first)
            until(lambda: "RUNNING" in them.stoker("show", "1").stdout)
            # And vice versa.
            second = box.submit("--gpus", "1", "true")
            until(lambda: f"the stoker of {them.user.pw_name}" in str(box.client.why(second)))
            (them.directory / "go").touch()
            assert box.end_of(second)["state"] == "COMPLETED"
        finally:
            for path in Path("/tmp/stoker-gpus").glob(f"{uuid}*"):
                path.unlink()


def test_a_foreign_process_that_appeared_while_idle_is_noticed_before_a_job_starts(
    quick: DaemonFixture, nvml: FakeNvml, foreign_process: int
) -> None:
    nvml.set([A])
    box = start(quick, nvml)
    box.result("--gpus", "1", "true")
    time.sleep(STALE_SECONDS + 1)  # nothing runs, so the GPU is not polled
    nvml.set([used(A, foreign_process)])
    job = box.submit("--gpus", "1", "true")
    time.sleep(1.5)
    assert box.job(job)["state"] == "PENDING"
    nvml.set([A])
    assert box.end_of(job)["state"] == "COMPLETED"


def test_use_is_kept_as_history_and_as_usage_of_the_job(
    idle: DaemonFixture, nvml: FakeNvml
) -> None:
    nvml.set([A])
    box = start(idle, nvml)
    job = box.submit("--gpus", "1", "sleep", "300")
    box.becomes(job, "RUNNING")
    nvml.set([used(A, box.pid_of(job), utilization=75)])
    until(lambda: box.client.usage(job)["total"]["busy_gpu_seconds"])
    history = box.client.gpu_history(minutes=5, step=2)["gpus"][_gpu_key(box)]
    assert 75 in history["utilization"]
    assert int(job) in history["jobs"]
    box.client.cancel([job])
    box.end_of(job)
    (attempt,) = box.client.usage(job)["attempts"]
    assert attempt["gpu_seconds"] >= attempt["measured_seconds"] > 0
    assert 0 < attempt["utilization"] <= 76
    assert attempt["rss_peak"] > 0
    assert attempt["cpu_seconds"] < 30


def _gpu_key(box: DaemonFixture) -> str:
    return f"{box.client.daemon()['node']}/0"
