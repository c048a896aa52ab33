"""The GPU memory of real jobs, measured by a real daemon through a stand-in driver."""

from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, until
from e2e.journal import journal
from fakes.nvml import FakeNvml, Gpu

WAITS = "while [ ! -e {0} ]; do sleep 0.05; done"


@pytest.fixture
def room(idle: DaemonFixture, nvml: FakeNvml) -> Path:
    """Where the processes of jobs say what they use of the one GPU there is."""
    room = idle.user / "room"
    room.mkdir()
    nvml.set([Gpu(uuid="GPU-aaaa", memory_total=24_000, claims=room)])
    start(idle, nvml)
    return room


def start(box: DaemonFixture, nvml: FakeNvml) -> None:
    done = box.stoker("daemon", "start", env=nvml.env())
    assert done.returncode == 0, done.stderr


def told(box: DaemonFixture) -> list[tuple[int, int]]:
    """Jobs and MiB, as they stand in the journal."""
    return [(event["job"], event["memory"]) for event in journal(box, "MemoryMeasured")]


def test_kub_63_memory_use_is_reported_once_while_it_grows(
    idle: DaemonFixture, nvml: FakeNvml, room: Path
) -> None:
    box = idle
    grows = "; ".join(
        [
            f"echo 500 >{room}/$$",
            WAITS.format("child"),
            # One in another session, and without its environment, is as much the job's.
            f"env -i PATH=$PATH setsid sh -c 'echo 300 >{room}/$$; {WAITS.format('done')}' & :",
            WAITS.format("more"),
            f"echo 2000 >{room}/$$; wait",
        ]
    )
    job = box.submit("--gpus", "1", grows)
    id = int(job)
    until(lambda: told(box) == [(id, 500)])
    (box.user / "child").touch()
    until(lambda: told(box) == [(id, 500), (id, 800)])
    box.crash()
    start(box, nvml)
    until(lambda: box.gpus()["0"]["memory_used"] == 800)  # so the new one has looked
    assert told(box) == [(id, 500), (id, 800)]
    (box.user / "more").touch()
    until(lambda: len(told(box)) > 2)
    assert told(box) == [(id, 500), (id, 800), (id, 2300)]
    assert box.gpus()["0"]["foreign"] == []
    (box.user / "done").touch()
    assert box.end_of(job)["state"] == "COMPLETED"


def test_kub_19_jobs_on_one_gpu_are_measured_separately(idle: DaemonFixture, room: Path) -> None:
    box = idle
    line = f"echo $SIZE >{room}/$$; {WAITS.format('done')}"
    first = int(box.submit("--gpus", "0.5", f"SIZE=700; {line}"))
    second = int(box.submit("--gpus", "0.5", f"SIZE=3000; {line}"))
    until(lambda: len(told(box)) > 1)
    assert sorted(told(box)) == [(first, 700), (second, 3000)]
