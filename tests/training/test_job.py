"""The library's own names: epochs, steps, figures, checkpoints."""

import copy
import json
import math
import os
import pickle
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker import training
from stoker.training import Job
from stoker.training.reports.files import STEPS_BYTES
from training.training_dir import TrainingDir


def test_a_loop_tells_its_epochs_and_steps(training_dir: TrainingDir) -> None:
    job = training_dir.job(EPOCHS_TO_BE_DONE=2, HEARTBEAT_FREQ=2)
    seen = [(epoch, batch) for epoch in job.epochs() for batch in job.steps("abc")]
    assert seen == [(0, "a"), (0, "b"), (0, "c"), (1, "a"), (1, "b"), (1, "c")]
    assert [line["k"] for line in training_dir.lines()] == ["hello", "start", "end", "start", "end"]
    assert training_dir.epochs("start") == [0, 1]
    end = training_dir.lines("end")[1]
    assert end["e"] == 1
    assert end["n"] == 3
    assert 0 < end["s"] <= end["d"]
    assert training_dir.lines("hello")[0]["pid"] == os.getpid()
    assert training_dir.steps()["e"] == 1


def test_the_first_report_creates_the_private_directory(training_dir: TrainingDir) -> None:
    assert not training_dir.reports.exists()
    training_dir.job()
    assert stat.S_IMODE(training_dir.reports.stat().st_mode) == 0o700


def test_epochs_go_on_where_the_last_attempt_ended(training_dir: TrainingDir) -> None:
    job = training_dir.job(EPOCHS_DONE=3, EPOCHS_TO_BE_DONE=5)
    assert job.restarted
    assert list(job.epochs()) == [3, 4]
    assert training_dir.epochs("end") == [3, 4]


def test_what_was_asked_for_at_submission_wins_over_what_the_script_says(
    training_dir: TrainingDir,
) -> None:
    assert list(training_dir.job(EPOCHS_TO_BE_DONE=2).epochs(7)) == [0, 1]
    assert list(Job({}).epochs(3)) == [0, 1, 2]
    assert list(Job({}).epochs()) == [0]


def test_a_job_that_is_no_training_job_knows_its_epochs_too(training_dir: TrainingDir) -> None:
    job = training_dir.job(STOKER_EPOCHS_DONE=2)
    assert (job.epochs_done, job.restarted, list(job.epochs(4))) == (2, True, [2, 3])


def test_under_stoker_its_own_word_counts_and_not_what_was_inherited(
    training_dir: TrainingDir,
) -> None:
    job = training_dir.job(STOKER_EPOCHS_DONE=0, EPOCHS_DONE=3, JOB_RESTARTED="TRUE")
    assert (job.epochs_done, job.restarted) == (0, False)
    job = training_dir.job(STOKER_EPOCHS_DONE=2, EPOCHS_DONE=0, JOB_RESTARTED="FALSE")
    assert (job.epochs_done, job.restarted) == (2, True)


def test_variables_of_the_submitting_training_are_ignored(
    training_dir: TrainingDir,
) -> None:
    inherited = {"JOB_UUID": "a-1", "EPOCHS_TO_BE_DONE": 9, "EPOCHS_DONE": 8}
    assert list(training_dir.job(STOKER_JOB_ID=2, **inherited).epochs(2)) == [0, 1]


def test_without_a_daemon_the_older_variable_names_work() -> None:
    job = Job({"EPOCHS_DONE": "2", "JOB_RESTARTED": "TRUE", "EPOCHS_TO_BE_DONE": "3"})
    assert (job.restarted, list(job.epochs(9))) == (True, [2])
    assert not Job({"EPOCHS_DONE": "2", "JOB_RESTARTED": "FALSE"}).restarted


@pytest.mark.parametrize("odd", ["3", 3.0, Path("3"), "three", -1, math.nan, math.inf, [], object])
def test_odd_arguments_raise_nothing(training_dir: TrainingDir, odd: object) -> None:
    job = training_dir.job()
    job.start_epoch(odd)  # type: ignore[arg-type]
    job.measure()
    job.end_epoch()
    assert training_dir.epochs("end") == [3 if odd in ("3", 3.0) else 0]
    assert isinstance(list(Job({}).epochs(odd)), list)  # type: ignore[arg-type]


def test_a_loop_that_is_left_early_has_ended_its_last_epoch(training_dir: TrainingDir) -> None:
    job = training_dir.job()
    for epoch in job.epochs(5):
        if epoch == 2:
            break
    assert training_dir.epochs("end") == [0, 1, 2]
    assert not job.should_stop()


def test_so_has_one_behind_a_progress_bar(training_dir: TrainingDir) -> None:
    def bar(epochs: Iterator[int]) -> Iterator[int]:
        yield from epochs

    def train() -> int:
        for number, _ in enumerate(bar(training_dir.job().epochs(5))):
            if number == 1:
                return number
        return -1

    assert train() == 1
    assert training_dir.epochs("end") == [0, 1]


def test_steps_have_the_length_of_their_loader(training_dir: TrainingDir) -> None:
    assert len(training_dir.job().steps([1, 2, 3])) == 3


def test_the_word_about_steps_has_one_length_and_is_overwritten(training_dir: TrainingDir) -> None:
    job = training_dir.job(HEARTBEAT_FREQ=1)
    job.start_epoch()
    for _ in range(50):
        job.measure()
    data = (training_dir.reports / "steps").read_bytes()
    assert len(data) == STEPS_BYTES
    assert data.endswith(b" \n")
    assert training_dir.steps()["n"] == 50


def test_an_epoch_without_an_end_call_ends_when_the_next_begins(training_dir: TrainingDir) -> None:
    job = training_dir.job()
    for _ in range(3):
        job.start_epoch()
    assert training_dir.epochs("start") == [0, 1, 2]
    assert training_dir.epochs("end") == [0, 1]


def test_an_end_without_a_start_is_no_epoch(training_dir: TrainingDir) -> None:
    job = training_dir.job()
    job.end_epoch()
    job.start_epoch()
    job.end_epoch()
    job.end_epoch()
    assert (training_dir.epochs("end"), job.epoch) == ([0], 1)


class Tensor:
    """Holds one number, like those of the frameworks."""

    def __init__(self, value: object) -> None:
        self.value = value

    def item(self) -> object:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def test_figures_may_be_anything_that_holds_a_number(training_dir: TrainingDir) -> None:
    training_dir.job().report(
        loss=Tensor(0.25),
        steps=3,
        name="resnet",
        many=Tensor(ValueError("only one element")),
        none=None,
        nan=math.nan,
        infinite=Tensor(math.inf),
        self=1,
        story="x" * 101,
    )
    (line,) = training_dir.lines("metrics")
    assert math.isnan(line["v"].pop("nan"))
    known = {"loss": 0.25, "steps": 3.0, "self": 1.0, "name": "resnet", "infinite": math.inf}
    assert line["v"] == known


def test_metrics_of_every_step_are_reported_at_once_in_one_line_each(
    training_dir: TrainingDir,
) -> None:
    job = training_dir.job()
    job.start_epoch()
    for step in range(1000):
        job.report(loss=step)
    job.end_epoch()
    assert [line["v"]["loss"] for line in training_dir.lines("metrics")] == list(range(1000))
    assert {line["e"] for line in training_dir.lines("metrics")} == {0}


def test_the_last_metrics_are_reported_at_exit(training_dir: TrainingDir) -> None:
    done = training_dir.run(
        "from stoker.training import job\njob.report(loss=1)\njob.report(loss=2)", EPOCHS_DONE=0
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [line["v"] for line in training_dir.lines("metrics")] == [{"loss": 1.0}, {"loss": 2.0}]


def test_too_many_metrics_for_a_line_are_split(training_dir: TrainingDir) -> None:
    figures = {f"weight {number} äöü": number for number in range(1000)}
    training_dir.job().report(figures, step=3)
    lines = training_dir.lines("metrics")
    assert len(lines) > 1
    assert {name: value for line in lines for name, value in line["v"].items()} == figures
    assert {line["s"] for line in lines} == {3}
    assert max(len(json.dumps(line)) for line in lines) < 4096


def test_the_checkpoint_is_the_newest_finished_file(training_dir: TrainingDir) -> None:
    job = training_dir.job()
    assert not training_dir.checkpoints.exists()
    root = Path(job.checkpoint_dir)
    assert root.is_dir()
    assert job.checkpoint is None
    for age, name in enumerate(["best.new", ".hidden", "new/model.pt", "old.pt"]):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("")
        os.utime(root / name, (1000 - age, 1000 - age))
    assert job.checkpoint == str(root / "new/model.pt")


def test_notes_and_half_written_files_are_no_checkpoints(training_dir: TrainingDir) -> None:
    job = training_dir.job()
    root = Path(job.checkpoint_dir)
    names = [
        "unfinished.new/model.pt",
        "model.pt~",
        "x.part",
        "log.csv",
        "unknown",
        "model.safetensors",
    ]
    best = []
    for age, name in enumerate(reversed(names)):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("")
        os.utime(root / name, (1000 + age, 1000 + age))
    for name in reversed(names):
        best.append(os.path.basename(job.checkpoint or ""))
        (root / name).unlink()
    assert best == ["model.safetensors", "unknown", "log.csv", "", "", ""]


def test_by_hand_a_directory_is_made_when_a_script_asks_for_it(tmp_path: Path) -> None:
    job = Job({})
    assert job.checkpoint is None
    assert list(tmp_path.iterdir()) == []
    assert Path(job.checkpoint_dir) == tmp_path / "snapshots" / "job"
    assert (tmp_path / "snapshots" / "job").is_dir()


def test_one_process_has_one_job(
    monkeypatch: pytest.MonkeyPatch, training_dir: TrainingDir
) -> None:
    for name, value in training_dir.variables.items():
        monkeypatch.setenv(name, value)
    job = training.job
    assert training.job is job
    assert copy.deepcopy({"model": job})["model"] is job
    assert pickle.loads(pickle.dumps(job)) is job
    assert len(training_dir.lines("hello")) == 1
    with pytest.raises(AttributeError, match="nonsense"):
        _ = training.nonsense


def test_without_stoker_nothing_is_written_and_nothing_stops(tmp_path: Path) -> None:
    job = Job({})
    for _ in job.epochs(2):
        for _ in job.steps(range(3)):
            job.report(loss=1)
    assert not job.should_stop()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "reports", ["/dev/null/x", "/proc/nowhere", "relative/\udcff", "/dev/full", "x" * 5000]
)
def test_unwritable_reports_do_not_stop_the_training(reports: str, tmp_path: Path) -> None:
    job = Job({"STOKER_REPORTS": reports, "HEARTBEAT_FREQ": "1", "NUM_GPUS": "2"})
    for _ in job.epochs(2):
        for _ in job.steps(range(3)):
            job.report(loss=1)
    assert not job.should_stop()


def test_a_full_disk_does_not_stop_the_training(training_dir: TrainingDir) -> None:
    training_dir.reports.mkdir()
    for name in ("report", "steps", "stop_at.new"):
        (training_dir.reports / name).symlink_to("/dev/full")
    training_dir.ask_to_stop()
    job = training_dir.job(HEARTBEAT_FREQ=1, NUM_GPUS=2)
    for _ in job.epochs(3):
        for _ in job.steps(range(9)):
            pass
    assert not job.should_stop()  # its peers could not be told


def test_half_a_line_does_not_swallow_the_next(
    monkeypatch: pytest.MonkeyPatch, training_dir: TrainingDir
) -> None:
    job = training_dir.job()
    whole = os.write
    monkeypatch.setattr(os, "write", lambda file, data: whole(file, data[:10]))
    job.start_epoch()
    monkeypatch.setattr(os, "write", whole)
    job.end_epoch()
    said = (training_dir.reports / "report").read_text().splitlines()
    assert said[1] == '{"k":"star'
    assert json.loads(said[2])["k"] == "end"


def test_a_script_that_closes_all_files_does_not_get_steps_written_into_its_own(
    training_dir: TrainingDir,
) -> None:
    done = training_dir.run(
        "import os\n"
        "from stoker.training import job\n"
        "job.start_epoch()\n"
        "for _ in range(3): job.measure()\n"
        "os.closerange(3, 100)\n"
        "mine = open('mine', 'w')\n"
        "for _ in range(3): job.measure()\n",
        HEARTBEAT_FREQ=1,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (training_dir.root / "mine").read_text() == ""
    assert training_dir.steps()["n"] == 6


def test_nonsense_in_the_environment_counts_as_nothing(training_dir: TrainingDir) -> None:
    job = training_dir.job(
        EPOCHS_DONE="many", HEARTBEAT_FREQ="-3", NUM_GPUS="all", RANK="", EPOCHS="x"
    )
    assert (job.epochs_done, job.restarted) == (0, False)
    assert list(job.epochs(1)) == [0]
