"""Two attempts of a job at once: only the newer one writes checkpoints."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker.training import training_job
from stoker.training.runtime import attempt_fence
from training.training_dir import SOURCES, TrainingDir

TRAIN = """
import os, sys, time
from stoker.training import job

def wait_for(name):
    deadline = time.monotonic() + 30
    while not os.path.exists(name) and time.monotonic() < deadline:
        time.sleep(0.01)

attempt = os.environ["STOKER_ATTEMPT"]
for epoch in job.epochs(4):
    wait_for(f"go{attempt}.{epoch}")
    with open(job.checkpoint_dir + "/model.pt.new", "w") as file:
        file.write(f"{attempt} {epoch}")
    os.replace(job.checkpoint_dir + "/model.pt.new", job.checkpoint_dir + "/model.pt")
"""


class Attempt:
    """A process that trains an attempt, one epoch for each `allow`."""

    def __init__(self, root: Path, attempt: int, epochs_done: int = 0) -> None:
        directory = TrainingDir(root, attempt, STOKER_ATTEMPT=attempt)
        directory.variables["STOKER_EPOCHS_DONE"] = str(epochs_done)
        self.root, self.attempt, self.directory = root, attempt, directory
        environment = {"PATH": os.defpath, "PYTHONPATH": str(SOURCES), **directory.variables}
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRAIN], env=environment, cwd=root, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def allow(self, epoch: int) -> None:
        (self.root / f"go{self.attempt}.{epoch}").touch()

    def saves(self, epoch: int) -> None:
        """Let it save an epoch, and wait for that."""
        self.allow(epoch)
        self.wait_for(f"{self.attempt} {epoch}")

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 20
        while saved(self.root) != text:
            assert time.monotonic() < deadline, saved(self.root)
            time.sleep(0.01)

    def end(self) -> tuple[int, str]:
        """Wait for its end; return its exit code and what it printed."""
        _, text = self.process.communicate(timeout=20)
        return self.process.returncode, text


def mark_of(job: training_job.Job) -> Path:
    (mark,) = Path(job.checkpoint_dir).glob(f"{attempt_fence.MARK}-*")
    return mark


def saved(root: Path) -> str | None:
    path = root / "checkpoints/model.pt"
    return path.read_text() if path.exists() else None


def test_an_older_attempt_that_still_trains_does_not_save_once_a_newer_one_has_started(
    tmp_path: Path,
) -> None:
    old = Attempt(tmp_path, attempt=0)
    old.saves(0)
    new = Attempt(tmp_path, attempt=1, epochs_done=1)
    new.saves(1)
    old.allow(1)
    code, text = old.end()
    assert code == 75
    assert text == "stoker: attempt 1 of this job has started; this one stops without saving\n"
    assert saved(tmp_path) == "1 1"
    for epoch in (2, 3):
        new.allow(epoch)
    assert new.end() == (0, "")
    assert saved(tmp_path) == "1 3"
    assert [line["e"] for line in old.directory.lines("start")] == [0, 1]


def test_on_two_file_systems_each_attempt_keeps_its_own_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    attempts = [Attempt(tmp_path / "a", attempt=0), Attempt(tmp_path / "b", attempt=1)]
    for epoch in range(4):
        for attempt in attempts:
            attempt.allow(epoch)
    assert [attempt.end() for attempt in attempts] == [(0, ""), (0, "")]
    assert (saved(tmp_path / "a"), saved(tmp_path / "b")) == ("0 3", "1 3")


def test_the_newest_attempt_is_known_whatever_the_order_of_the_starts(tmp_path: Path) -> None:
    fences = [attempt_fence.AttemptFence("j", attempt) for attempt in (2, 0, 1)]
    for fence in fences:
        fence.mark(str(tmp_path))
    assert [fence.newer_attempt() for fence in fences] == [None, 2, 2]


def test_another_job_with_the_same_directory_is_not_stopped(tmp_path: Path) -> None:
    first, second = attempt_fence.AttemptFence("a-1", 5), attempt_fence.AttemptFence("a-2", 0)
    for fence in (first, second):
        fence.mark(str(tmp_path))
    assert second.newer_attempt() is None


def test_a_resuming_attempt_is_protected_before_it_loads_its_checkpoint(tmp_path: Path) -> None:
    old = TrainingDir(tmp_path, attempt=0, STOKER_ATTEMPT=0).job()
    assert os.path.isdir(old.checkpoint_dir)
    TrainingDir(tmp_path, attempt=1, STOKER_ATTEMPT=1).job()
    with pytest.raises(SystemExit) as stop:
        print(old.checkpoint_dir)
    assert stop.value.code == 75


@pytest.mark.parametrize("save_path", ["start_epoch", "measure"])
def test_an_attempt_that_remembers_its_directory_stops_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_path: str
) -> None:
    monkeypatch.setattr(training_job, "FENCE_CHECK_SECONDS", 0.0)
    old = TrainingDir(tmp_path, attempt=0, STOKER_ATTEMPT=0, HEARTBEAT_FREQ=1).job()
    assert os.path.isdir(old.checkpoint_dir)
    old.start_epoch()
    old.measure()
    old.measure()
    TrainingDir(tmp_path, attempt=1, STOKER_ATTEMPT=1).job()
    with pytest.raises(SystemExit):
        getattr(old, save_path)()


def test_every_rank_of_an_older_gang_stops_at_the_next_epoch(tmp_path: Path) -> None:
    variables = {"WORLD_SIZE": 2, "STOKER_ATTEMPT": 0}
    ranks = [TrainingDir(tmp_path, 0, **variables).job(RANK=i, LOCAL_RANK=i) for i in (0, 1)]
    for rank in ranks:
        assert os.path.isdir(rank.checkpoint_dir)
        rank.start_epoch()
    TrainingDir(tmp_path, attempt=1, STOKER_ATTEMPT=1).job(RANK=1, LOCAL_RANK=1)
    for rank in ranks:
        with pytest.raises(SystemExit):
            rank.start_epoch()


def test_the_mark_is_no_checkpoint_and_a_deleted_one_is_written_again(tmp_path: Path) -> None:
    job = TrainingDir(tmp_path, attempt=3, STOKER_ATTEMPT=3).job()
    mark = mark_of(job)
    assert job.checkpoint is None
    assert mark.stat().st_size == 4
    mark.unlink()
    job.start_epoch()
    assert mark.stat().st_size == 4


def test_a_mark_of_another_user_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = TrainingDir(tmp_path, attempt=0, STOKER_ATTEMPT=0).job()
    mark_of(job).write_bytes(b"x" * 9)
    monkeypatch.setattr(attempt_fence, "is_trusted", lambda _: False)
    job.start_epoch()


def test_a_directory_in_place_of_the_mark_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / f"checkpoints/{attempt_fence.MARK}-checkpoints").mkdir(parents=True)
    TrainingDir(tmp_path, attempt=0, STOKER_ATTEMPT=0).job().start_epoch()


def test_without_stoker_nothing_is_marked(tmp_path: Path) -> None:
    directory = TrainingDir(tmp_path)
    del directory.variables["STOKER_REPORTS"]
    job = directory.job()
    assert os.listdir(job.checkpoint_dir) == []
