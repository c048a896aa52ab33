"""Training jobs that share a GPU by memory: a real daemon, real processes, a stand-in driver."""

import sys
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, until
from e2e.journal import journal
from fakes.nvml import FakeNvml, Gpu

TOTAL_MIB = 8192
SCRIPT = """
import os, sys, time
sys.path.insert(0, {claims!r})
import claims
from stoker.training import job

def wait(name):
    while not os.path.exists(name):
        time.sleep(0.01)

name, sizes = sys.argv[1], [int(size) for size in sys.argv[2].split(",")]
print("reserved", os.environ["RESERVED_MEM"], "done", job.epochs_done, flush=True)
for epoch in job.epochs(len(sizes)):
    claims.claim({directory!r}, sizes[epoch], {total})
    wait(f"{{name}}{{epoch}}")
"""


@pytest.fixture
def claims_dir(idle: DaemonFixture, nvml: FakeNvml) -> Path:
    claims_dir = idle.user / "claims"
    claims_dir.mkdir()
    nvml.set([Gpu(uuid="GPU-aaaa", memory_total=TOTAL_MIB, claims=claims_dir)])
    done = idle.stoker("daemon", "start", env=nvml.env())
    assert done.returncode == 0, done.stderr
    return claims_dir


@pytest.fixture
def trainer(idle: DaemonFixture, claims_dir: Path) -> Path:
    idle.stoker("policy", "backfill", check=True)  # no job is preempted for an equal one
    claims = str(Path(__file__).parents[1] / "fakes/nvml")
    text = SCRIPT.format(claims=claims, directory=str(claims_dir), total=TOTAL_MIB)
    return idle.script("train.py", text)


def train(box: DaemonFixture, path: Path, name: str, sizes: str, memory: int, *more: str) -> str:
    """Submit a job that uses these MiB in its epochs."""
    options = ["--name", name, "--epochs", sizes.count(",") + 1, "--gpu-memory", f"{memory}M"]
    return box.submit(*options, "--single-gpu", *more, sys.executable, path, name, sizes)


def go(box: DaemonFixture, *names: str) -> None:
    for name in names:
        (box.user / name).touch()


def finish_epochs(box: DaemonFixture, name: str, epochs: int = 2) -> None:
    go(box, *(f"{name}{epoch}" for epoch in range(epochs)))


def test_kub_11_12_jobs_share_a_gpu_while_their_requests_fit(
    idle: DaemonFixture, trainer: Path
) -> None:
    box = idle
    a = train(box, trainer, "a", "1000,1000", 3000)
    b = train(box, trainer, "b", "1000,1000", 3000)
    c = train(box, trainer, "c", "1000,1000", 3000)
    alone = train(box, trainer, "d", "1000,1000", 100, "--exclusive-gpu")
    box.becomes(a, "RUNNING")
    box.becomes(b, "RUNNING")
    assert [box.job(job)["state"] for job in (c, alone)] == ["PENDING", "PENDING"]
    for name in "abcd":
        finish_epochs(box, name)
    for job in (a, b, c, alone):
        assert box.end_of(job)["state"] == "COMPLETED"
    assert box.says(a, "reserved 3000 done 0")


def test_kub_19_measured_memory_lets_another_job_share_the_gpu(
    idle: DaemonFixture, trainer: Path
) -> None:
    box = idle
    a = train(box, trainer, "a", "2000,2000", 6000)
    b = train(box, trainer, "b", "500,500", 5000)
    box.becomes(a, "RUNNING")
    until(lambda: journal(box, "MemoryMeasured"))
    assert box.job(b)["state"] == "PENDING"
    go(box, "a0")
    box.becomes(b, "RUNNING")
    assert box.job(a)["training"]["memory_reserved"] == 2200
    finish_epochs(box, "a")
    finish_epochs(box, "b")
    assert box.end_of(a)["state"] == box.end_of(b)["state"] == "COMPLETED"
    # The second job of its kind is planned with the profile of the first.
    again = train(box, trainer, "a", "2000,2000", 6000)
    assert box.end_of(again)["state"] == "COMPLETED"
    assert box.says(again, "reserved 2200")


def test_a_job_out_of_memory_resumes_with_a_larger_reservation(
    idle: DaemonFixture, trainer: Path
) -> None:
    box = idle
    a = train(box, trainer, "a", "1000,6000,1000", 2000)
    b = train(box, trainer, "b", "4000,4000", 4500)
    box.becomes(b, "RUNNING")
    until(lambda: len(journal(box, "MemoryMeasured")) > 1)
    go(box, "a0")  # its next epoch needs the memory of b
    until(lambda: box.job(a)["attempt"] == 1)
    assert "out of memory" in box.job(a)["attempts"][0]["cause"]
    finish_epochs(box, "a", 3)
    finish_epochs(box, "b")
    assert box.end_of(b)["state"] == "COMPLETED"
    assert box.end_of(a, 60)["state"] == "COMPLETED"
    assert box.says(a, "done 1")
    assert box.job(b)["attempt"] == 0  # b was not affected


def test_a_job_that_ran_out_because_of_another_resumes_alone(
    idle: DaemonFixture, trainer: Path
) -> None:
    box = idle
    a = train(box, trainer, "a", "6000,6000", 2000)  # it requests 2,000 and uses 6,000
    box.becomes(a, "RUNNING")
    b = train(box, trainer, "b", "1000,4000,1000", 4500)
    box.becomes(b, "RUNNING")
    finish_epochs(box, "b", 3)
    until(lambda: box.job(b)["attempt"] == 1)
    assert box.job(b)["state"] == "PENDING"
    finish_epochs(box, "a")
    assert box.end_of(a)["state"] == "COMPLETED"
    assert box.end_of(b)["state"] == "COMPLETED"
