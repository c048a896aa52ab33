"""Training jobs and a real daemon: reports are recorded whatever is killed."""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.daemon_fixture import DaemonFixture, kill, until
from e2e.journal import journal
from stoker.cli.output.times import epoch
from stoker.core.elastic.rebalance import REBALANCE_SECONDS

SCRIPT = """
import os, sys, time
from stoker.training import job

def wait(name):
    while not os.path.exists(name):
        time.sleep(0.01)

epochs, code = int(sys.argv[1]), int(sys.argv[2])
for epoch in range(job.epochs_done, epochs):
    job.start_epoch()
    with open("diary", "a") as file:
        print(os.environ["STOKER_ATTEMPT"], epoch, file=file)
    for _ in range(3):
        job.measure()
    wait(f"go{epoch}")
    job.end_epoch()
    open("saved", "w").write(str(epoch + 1))
open("trained", "w").close()
wait("leave")
sys.exit(code)
"""


@pytest.fixture
def trainer(box: DaemonFixture) -> Path:
    return box.script("train.py", SCRIPT)


def go(box: DaemonFixture, *names: object) -> None:
    """Let the script continue past these points."""
    for name in names:
        (box.user / str(name)).touch()


def counted(box: DaemonFixture) -> list[int]:
    return [event["done"] for event in journal(box, "EpochsCounted")]


def begun_epochs(box: DaemonFixture) -> list[str]:
    """Return attempts and epochs in the order of their start."""
    path = box.user / "diary"
    return path.read_text().splitlines() if path.exists() else []


def train(box: DaemonFixture, path: Path, epochs: int = 3, code: int = 0, *options: str) -> str:
    command = ["--gpus", "1", "--epochs", epochs, *options]
    return box.submit(*command, sys.executable, path, epochs, code)


def last(box: DaemonFixture, kind: str) -> dict[str, Any]:
    event: dict[str, Any] = journal(box, kind)[-1]
    return event


def test_epochs_are_recorded_during_training_and_the_last_one_at_a_successful_end(
    box: DaemonFixture, trainer: Path
) -> None:
    job = train(box, trainer)
    until(lambda: journal(box, "TrainingBegan"))
    reports = box.state / "training" / f"{job}.0"
    go(box, "go0")
    until(lambda: counted(box) == [1])
    first = last(box, "EpochsCounted")
    assert first["seconds"] > 0
    assert first["warmup"] > 0
    go(box, "go1", "go2")
    until((box.user / "trained").exists)
    until(lambda: counted(box)[-1] == 2)
    assert reports.is_dir()
    go(box, "leave")
    assert box.end_of(job)["state"] == "COMPLETED"
    assert counted(box)[-1] == 3
    assert len(journal(box, "TrainingBegan")) == 1
    until(lambda: not reports.exists())
    assert len(list((box.state / "checkpoints").iterdir())) == 1


def test_the_last_epoch_of_a_failed_job_does_not_count(box: DaemonFixture, trainer: Path) -> None:
    go(box, "go0", "go1", "go2", "leave")
    assert box.end_of(train(box, trainer, 3, 1))["state"] == "FAILED"
    assert counted(box)[-1] == 2


def test_epochs_that_end_without_a_daemon_are_counted_by_the_next(
    box: DaemonFixture, trainer: Path
) -> None:
    job = train(box, trainer)
    go(box, "go0")
    until(lambda: counted(box) == [1])
    box.crash()
    go(box, "go1")
    until(lambda: "0 2" in begun_epochs(box))
    assert counted(box) == [1]
    box.up()
    until(lambda: counted(box) == [1, 2])
    go(box, "go2", "leave")
    assert box.end_of(job)["state"] == "COMPLETED"
    assert counted(box) == [1, 2, 3]
    assert len(journal(box, "TrainingBegan")) == 1


def test_a_job_that_trains_and_ends_without_a_daemon_has_its_epochs(
    box: DaemonFixture, trainer: Path
) -> None:
    job = train(box, trainer)
    until(lambda: journal(box, "TrainingBegan"))
    pid = box.pid_of(job)
    box.crash()
    go(box, "go0", "go1", "go2", "leave")
    until(lambda: not Path(f"/proc/{pid}").exists())
    box.up()
    assert box.end_of(job)["state"] == "COMPLETED"
    assert counted(box) == [3]
    until(lambda: not (box.state / "training" / f"{job}.0").exists())


def test_a_training_stops_at_its_next_epoch_on_request_and_resumes_later(
    idle: DaemonFixture,
) -> None:
    box = idle.start("{gpu:1,cpu:8}")
    trainer = box.script("train.py", SCRIPT)
    job = train(box, trainer)
    until(lambda: journal(box, "TrainingBegan"))
    go(box, "go0")
    until(lambda: counted(box) == [1])
    urgent = box.submit("--gpus", "1", "--priority", "100", "true")
    until((box.state / "training" / f"{job}.0" / "stop").exists)
    box.crash()  # and the next daemon recovers its exit
    go(box, "go1")
    box.up()
    assert box.end_of(urgent)["state"] == "COMPLETED"
    until(lambda: "1 2" in begun_epochs(box))
    assert journal(box, "ProcessExited")[0]["stopped"]
    go(box, "go2", "leave")
    assert box.end_of(job)["state"] == "COMPLETED"
    assert begun_epochs(box) == ["0 0", "0 1", "1 2"]
    assert counted(box)[-1] == 3


def test_the_last_report_is_recorded_when_the_job_has_ended(box: DaemonFixture) -> None:
    line = "from stoker.training import job; job.report(loss=0.5, acc=1); job.report(loss=0.25)"
    job = box.submit("--gpus", "0", sys.executable, "-c", line)  # no epoch, and none requested
    assert box.end_of(job)["state"] == "COMPLETED", box.output(job)
    assert box.job(job)["training"]["metrics"] == {"loss": 0.25, "acc": 1.0}
    box.crash()
    box.up()
    assert box.job(job)["training"]["metrics"] == {"loss": 0.25, "acc": 1.0}


def test_a_job_submitted_by_a_training_job_has_none_of_its_variables(box: DaemonFixture) -> None:
    line = (
        f"{sys.executable} -m stoker submit --gpus 0 --name inner 'env >inner.txt'; env >outer.txt"
    )
    assert box.end_of(box.submit("--gpus", "0", "--epochs", 3, line))["state"] == "COMPLETED"
    assert box.end_of("inner")["state"] == "COMPLETED"
    outer, inner = (
        (box.user / name).read_text().splitlines() for name in ("outer.txt", "inner.txt")
    )
    ours = ("JOB_UUID=", "EPOCHS_TO_BE_DONE=", f"PYTHONPATH={box.state}/library/")
    assert sum(line.startswith(ours) for line in outer) == 3
    assert not any(line.startswith(ours) for line in inner)


def test_a_feed_counts_epochs_like_a_daemon(idle: DaemonFixture) -> None:
    trainer = idle.script("train.py", SCRIPT)
    go(idle, "go0", "leave")
    lines = idle.script("lines", f"{sys.executable} {trainer} 2 0\n")
    with lines.open() as file:
        feed = idle.popen("feed", "--gpus", "0", stdin=file)
    try:
        until(lambda: begun_epochs(idle)[-1:] == ["0 1"])
        until(lambda: counted(idle) == [1])
        go(idle, "go1")
        assert feed.wait(30) == 0, feed.communicate()
    finally:
        kill(feed.pid, signal.SIGKILL)
        feed.communicate()
    assert counted(idle) == [1, 2]


def test_the_training_library_is_found_by_any_interpreter(
    box: DaemonFixture, tmp_path: Path
) -> None:
    """As in an image built for the scheduler, or with a bare Python."""
    user_modules = tmp_path / "own"
    user_modules.mkdir()
    (user_modules / "mine.py").write_text("")
    line = "import mine, stoker.training; from kubernetesdlprofile import kubeprofiler as k; "
    line += "print(k.KubeProfiler().EPOCHS, stoker.training.__file__)"
    python = getattr(sys, "_base_executable", sys.executable)
    job = box.submit(
        "--epochs", 7, "--gpus", 0, "--env", f"PYTHONPATH={user_modules}", python, "-c", line
    )
    assert box.end_of(job)["state"] == "COMPLETED", box.output(job)
    assert box.output(job).startswith(f"7 {box.state}/library/")


ELASTIC = """
import os, time
from stoker.training import job

for epoch in job.epochs(100_000):
    time.sleep(0.1 / len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")))
    with open("sizes", "a") as file:
        print(os.environ["CUDA_VISIBLE_DEVICES"], file=file)
"""


def test_an_elastic_job_alone_grows_at_its_first_checkpoints(box: DaemonFixture) -> None:
    job = box.submit("--gpus", "1..4", sys.executable, box.script("elastic.py", ELASTIC))
    began = box.becomes(job, "RUNNING")["started_at"]
    sizes: dict[int, None] = {}

    def has_grown() -> bool:
        if (box.user / "sizes").exists():
            lines = (box.user / "sizes").read_text().splitlines()
            sizes.update(dict.fromkeys(len(line.split(",")) for line in lines))
        return 4 in sizes

    until(has_grown)
    box.stoker("cancel", job)
    box.end_of(job)
    assert list(sizes) == [1, 2, 4]
    requested_at = [event["at"] for event in journal(box, "StopAsked")]
    assert [event["gpus"] for event in journal(box, "StopAsked")] == [2, 4]
    assert requested_at[-1] - (epoch(began) or 0.0) < REBALANCE_SECONDS
