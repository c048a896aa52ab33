"""Training jobs that share a GPU by memory: a real daemon, real processes, a stand-in driver."""

import sys
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, until
from e2e.journal import journal
from fakes.nvml import FakeNvml, Gpu

ROOM = 8192
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
    claims.claim({room!r}, sizes[epoch], {total})
    wait(f"{{name}}{{epoch}}")
"""


@pytest.fixture
def room(idle: DaemonFixture, nvml: FakeNvml) -> Path:
    room = idle.user / "room"
    room.mkdir()
    nvml.set([Gpu(uuid="GPU-aaaa", memory_total=ROOM, claims=room)])
    done = idle.stoker("daemon", "start", env=nvml.env())
    assert done.returncode == 0, done.stderr
    return room


@pytest.fixture
def trainer(idle: DaemonFixture, room: Path) -> Path:
    idle.stoker("policy", "backfill", check=True)  # nobody is stopped for his equals here
    claims = str(Path(__file__).parents[1] / "fakes/nvml")
    text = SCRIPT.format(claims=claims, room=str(room), total=ROOM)
    return idle.script("train.py", text)


def train(box: DaemonFixture, path: Path, name: str, sizes: str, memory: int, *more: str) -> str:
    """A job that uses so many MiB in each of its epochs."""
    options = ["--name", name, "--epochs", sizes.count(",") + 1, "--gpu-memory", f"{memory}M"]
    return box.submit(*options, "--single-gpu", *more, sys.executable, path, name, sizes)


def go(box: DaemonFixture, *names: str) -> None:
    for name in names:
        (box.user / name).touch()


def all_the_way(box: DaemonFixture, name: str, epochs: int = 2) -> None:
    go(box, *(f"{name}{epoch}" for epoch in range(epochs)))


def test_kub_11_12_jobs_share_a_gpu_as_long_as_what_they_say_fits(
    idle: DaemonFixture, trainer: Path
) -> None:
    box = idle
    a = train(box, trainer, "a", "1000,1000", 3000)
    b = train(box, trainer, "b", "1000,1000", 3000)
    c = train(box, trainer, "c", "1000,1000", 3000)
    alone = train(box, trainer, "d", "1000,1000", 100, "--exclusive-gpu")
    box.becomes(a, "RUNNING")
    box.becomes(b, "RUNNING")
    assert [box.job(each)["state"] for each in (c, alone)] == ["PENDING", "PENDING"]
    for name in "abcd":
        all_the_way(box, name)
    for each in (a, b, c, alone):
        assert box.end_of(each)["state"] == "COMPLETED"
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
    all_the_way(box, "a")
    all_the_way(box, "b")
    assert box.end_of(a)["state"] == box.end_of(b)["state"] == "COMPLETED"
    # The second of its kind is planned by what the first has taught.
    again = train(box, trainer, "a", "2000,2000", 6000)
    assert box.end_of(again)["state"] == "COMPLETED"
    assert box.says(again, "reserved 2200")


def test_out_of_memory_it_goes_on_from_its_checkpoint_with_more(
    idle: DaemonFixture, trainer: Path
) -> None:
    box = idle
    a = train(box, trainer, "a", "1000,6000,1000", 2000)
    b = train(box, trainer, "b", "4000,4000", 4500)
    box.becomes(b, "RUNNING")
    until(lambda: len(journal(box, "MemoryMeasured")) > 1)
    go(box, "a0")  # its next epoch needs what b has
    until(lambda: box.job(a)["attempt"] == 1)
    assert "out of memory" in box.job(a)["attempts"][0]["cause"]
    all_the_way(box, "a", 3)
    all_the_way(box, "b")
    assert box.end_of(b)["state"] == "COMPLETED"
    assert box.end_of(a, 60)["state"] == "COMPLETED"
    assert box.says(a, "done 1")
    assert box.job(b)["attempt"] == 0  # its neighbour's mistake was not its own


def test_the_victim_of_a_neighbour_goes_on_alone(idle: DaemonFixture, trainer: Path) -> None:
    box = idle
    a = train(box, trainer, "a", "6000,6000", 2000)  # it says 2,000 and takes 6,000
    box.becomes(a, "RUNNING")
    b = train(box, trainer, "b", "1000,4000,1000", 4500)
    box.becomes(b, "RUNNING")
    all_the_way(box, "b", 3)
    until(lambda: box.job(b)["attempt"] == 1)
    assert box.job(b)["state"] == "PENDING"
    all_the_way(box, "a")
    assert box.end_of(a)["state"] == "COMPLETED"
    assert box.end_of(b)["state"] == "COMPLETED"
