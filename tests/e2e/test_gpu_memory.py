"""The GPU memory of real jobs, measured by a real daemon through a stand-in driver."""

from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, until
from e2e.journal import journal
from fakes.nvml import FakeNvml, Gpu

WAITS = "while [ ! -e {0} ]; do sleep 0.05; done"


@pytest.fixture
def claims_dir(idle: DaemonFixture, nvml: FakeNvml) -> Path:
    """The directory where processes of jobs write what they use of the GPU."""
    claims_dir = idle.user / "claims"
    claims_dir.mkdir()
    nvml.set([Gpu(uuid="GPU-aaaa", memory_total=24_000, claims=claims_dir)])
    start(idle, nvml)
    return claims_dir


def start(box: DaemonFixture, nvml: FakeNvml) -> None:
    done = box.stoker("daemon", "start", env=nvml.env())
    assert done.returncode == 0, done.stderr


def measured(box: DaemonFixture) -> list[tuple[int, int]]:
    """Return jobs and MiB of the events in the journal."""
    return [(event["job"], event["memory"]) for event in journal(box, "MemoryMeasured")]


def test_kub_63_memory_use_is_reported_once_while_it_grows(
    idle: DaemonFixture, nvml: FakeNvml, claims_dir: Path
) -> None:
    box = idle
    grows = "; ".join(
        [
            f"echo 500 >{claims_dir}/$$",
            WAITS.format("child"),
            # A process in another session and without the environment also belongs to the job.
            (
                f"env -i PATH=$PATH setsid sh -c 'echo 300 >{claims_dir}/$$; "
                f"{WAITS.format('done')}' & :"
            ),
            WAITS.format("more"),
            f"echo 2000 >{claims_dir}/$$; wait",
        ]
    )
    job = box.submit("--gpus", "1", grows)
    id = int(job)
    until(lambda: measured(box) == [(id, 500)])
    (box.user / "child").touch()
    until(lambda: measured(box) == [(id, 500), (id, 800)])
    box.crash()
    start(box, nvml)
    until(lambda: box.gpus()["0"]["memory_used"] == 800)  # so the new daemon has polled
    assert measured(box) == [(id, 500), (id, 800)]
    (box.user / "more").touch()
    until(lambda: len(measured(box)) > 2)
    assert measured(box) == [(id, 500), (id, 800), (id, 2300)]
    assert box.gpus()["0"]["foreign"] == []
    (box.user / "done").touch()
    assert box.end_of(job)["state"] == "COMPLETED"


def test_kub_19_jobs_on_one_gpu_are_measured_separately(
    idle: DaemonFixture, claims_dir: Path
) -> None:
    box = idle
    line = f"echo $SIZE >{claims_dir}/$$; {WAITS.format('done')}"
    first = int(box.submit("--gpus", "0.5", f"SIZE=700; {line}"))
    second = int(box.submit("--gpus", "0.5", f"SIZE=3000; {line}"))
    until(lambda: len(measured(box)) > 1)
    assert sorted(measured(box)) == [(first, 700), (second, 3000)]
