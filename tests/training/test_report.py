"""Figures that a script reports: one line each, at once, and nothing that hurts the script."""

import json
import math
import os
from pathlib import Path

import pytest

from stoker import training
from stoker.training.reports.files import Files
from training.training_dir import TrainingDir


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch, training_dir: TrainingDir) -> TrainingDir:
    """This process is part of a job."""
    for name, value in training_dir.variables.items():
        monkeypatch.setenv(name, value)
    return training_dir


def test_every_call_is_one_line(attached: TrainingDir) -> None:
    training.report(loss=0.5, step=10)
    training.report({"val/loss": 0.25, "acc": 1}, step=10.5, lr=0.1)
    training.report(loss=0.5)
    lines = attached.lines("metrics")
    assert [line["v"] for line in lines] == [
        {"loss": 0.5},
        {"val/loss": 0.25, "acc": 1.0, "lr": 0.1},
        {"loss": 0.5},
    ]
    assert [line.get("s") for line in lines] == [10, 10.5, None]
    assert [list(line) for line in lines] == [
        ["k", "e", "t", "s", "v"],
        ["k", "e", "t", "s", "v"],
        ["k", "e", "t", "v"],
    ]


def test_it_is_there_before_the_next_line_of_the_script(attached: TrainingDir) -> None:
    for step in range(100):
        training.report(loss=1.0, step=step)
        assert [line["s"] for line in attached.lines("metrics")] == list(range(step + 1))


def test_infinite_and_missing_metrics_are_reported_as_such(attached: TrainingDir) -> None:
    training.report(a=math.nan, b=math.inf, c=-math.inf)
    (line,) = attached.lines("metrics")
    assert math.isnan(line["v"]["a"])
    assert (line["v"]["b"], line["v"]["c"]) == (math.inf, -math.inf)


@pytest.mark.parametrize(
    ("step", "told"),
    [(3, 3), (3.0, 3), (2.5, 2.5), (True, 1), ("x", None), (math.nan, None), (10**400, None)],
)
def test_a_step_is_a_number_or_none(attached: TrainingDir, step: object, told: object) -> None:
    training.report(loss=1, step=step)
    assert attached.lines("metrics")[0].get("s") == told


@pytest.mark.parametrize("odd", [{}, 7, "loss", [("loss", 0.5)], {1: 2.0}, {"x": object()}])
def test_whatever_is_reported_nothing_is_raised(attached: TrainingDir, odd: object) -> None:
    training.report(odd, step=1)  # type: ignore[arg-type]
    training.report(odd, lr=0.5)  # type: ignore[arg-type]
    assert attached.lines("metrics")[-1]["v"]["lr"] == 0.5


def test_bytes_grow_with_the_number_of_reports_and_nothing_else_is_left(
    training_dir: TrainingDir,
) -> None:
    job = training_dir.job()
    sizes = []
    for _ in range(3):
        for _ in range(200):
            job.report(loss=0.5, step=100)
        sizes.append((training_dir.reports / "report").stat().st_size)
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0]
    assert [path.name for path in training_dir.reports.iterdir()] == ["report"]


def test_only_the_first_of_several_processes_reports(training_dir: TrainingDir) -> None:
    for rank in (1, 0):
        training_dir.job(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=2).report(rank=rank)
    assert [line["v"] for line in training_dir.lines("metrics")] == [{"rank": 0.0}]


def test_without_stoker_it_has_no_effect(tmp_path: Path) -> None:
    training.report(loss=1.0, step=3)
    assert list(tmp_path.iterdir()) == []


def test_its_file_never_takes_the_place_of_stdout(training_dir: TrainingDir) -> None:
    done = training_dir.run(
        "import os\n"
        "from stoker.training import report\n"
        "os.close(1)\n"
        "report(loss=1.0)\n"
        "try:\n    os.write(1, b'not for stoker')\nexcept OSError:\n    pass\n"
        "report(loss=2.0)\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [line["v"]["loss"] for line in training_dir.lines("metrics")] == [1.0, 2.0]


def test_a_script_that_closes_all_files_does_not_get_reports_written_into_its_own(
    training_dir: TrainingDir,
) -> None:
    done = training_dir.run(
        "import os\n"
        "from stoker.training import report\n"
        "report(loss=1.0)\n"
        "os.closerange(3, 100)\n"
        "mine = open('mine', 'w')\n"
        "report(loss=2.0)\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (training_dir.root / "mine").read_text() == ""
    assert [line["v"]["loss"] for line in training_dir.lines("metrics")] == [1.0, 2.0]


def test_a_deleted_report_is_created_again(training_dir: TrainingDir) -> None:
    files = Files(str(training_dir.reports))
    assert files.append_line("one")
    os.unlink(training_dir.reports / "report")
    assert files.append_line("two")
    assert (training_dir.reports / "report").read_text() == "two\n"


# -- current -----------------------------------------------------------------------------------


def test_the_job_reads_all_variables_of_its_environment(
    attached: TrainingDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = {"lr": 0.1, "layers": [1, 2], "name": "x"}
    told = {
        "STOKER_JOB_ID": 1, "STOKER_JOB_NAME": "sweep", "STOKER_ATTEMPT": 2, "STOKER_GPUS": "0,3",
        "STOKER_GPU_COUNT": "2", "STOKER_GPU_UUIDS": "GPU-a,GPU-b", "STOKER_NODES": "a,b",
        "STOKER_NODE_RANK": 1, "STOKER_ARRAY_JOB_ID": 1, "STOKER_ARRAY_INDEX": 0,
        "STOKER_ARRAY_COUNT": 9, "STOKER_SWEEP_ID": 1, "STOKER_TRIAL": 0,
        "STOKER_PARAMS": json.dumps(params), "STOKER_DEADLINE": 1700000000,
        "STOKER_EPOCHS_DONE": 3, "EPOCHS_TO_BE_DONE": 5, "BATCH_SIZE": 16, "RESERVED_MEM": 900,
    }  # fmt: skip
    for name, value in told.items():
        monkeypatch.setenv(name, str(value))
    now = training.current()
    assert now.attached
    assert (now.job_id, now.name, now.attempt, now.restarted) == (1, "sweep", 2, True)
    assert (now.gpus, now.gpu_count, now.gpu_uuids) == (["0", "3"], 2.0, ["GPU-a", "GPU-b"])
    assert (now.nodes, now.node_rank) == (["a", "b"], 1)
    assert (now.array_id, now.array_index, now.array_count) == (1, 0, 9)
    assert (now.sweep_id, now.trial, now.params) == (1, 0, params)
    assert (now.epochs_done, now.epochs, now.batch_size) == (3, 5, 16)
    assert (now.reserved_memory, now.deadline) == (900, 1700000000.0)
    assert now.checkpoint_dir == str(attached.checkpoints)
    assert isinstance(now, training.Current)
    assert not attached.reports.exists()  # to ask is not to speak


def test_by_hand_it_knows_nothing_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_PARAMS", "{half")
    monkeypatch.setenv("STOKER_DEADLINE", "soon")
    now = training.current()
    assert (now.attached, now.job_id, now.gpus, now.params) == (False, None, [], {})
    assert (now.deadline, now.attempt, now.checkpoint_dir) == (None, 0, "")
