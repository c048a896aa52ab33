"""The older library's names, row by row."""

import copy
import os
import pickle
import time
from pathlib import Path

import pytest

from kubernetesdlprofile import kubeprofiler
from kubernetesdlprofile.kubeprofiler import KubeProfiler
from training.training_dir import TrainingDir


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch, training_dir: TrainingDir):
    """Make a profiler with these variables."""

    def make(**variables: object) -> KubeProfiler:
        for name, value in {**training_dir.variables, **variables}.items():
            monkeypatch.setenv(name, str(value))
        return kubeprofiler.KubeProfiler()

    return make


def test_kub_31_the_node_rank_is_the_rank(profiler) -> None:
    assert profiler(NODE_RANK=3).RANK == 3


def test_kub_32_the_local_rank_is_minus_one_when_there_is_none(profiler) -> None:
    assert profiler().LOCAL_RANK == -1
    assert profiler(LOCAL_RANK=2).LOCAL_RANK == 2


def test_kub_34_the_job_has_its_whole_name(profiler) -> None:
    assert profiler(JOB_UUID="x" * 50).JOBID == "x" * 50


@pytest.mark.parametrize(
    ("value", "restarted"),
    [("TRUE", True), ("true", True), ("1", True), ("yes", True)]
    + [(value, False) for value in ("FALSE", "false", "0", "", "no", "2", "None")],
)
def test_kub_35_by_hand_restarted_is_read_strictly(
    monkeypatch: pytest.MonkeyPatch, value: str, restarted: bool
) -> None:
    monkeypatch.setenv("JOB_RESTARTED", value)
    assert KubeProfiler().RESTARTED is restarted


def test_kub_35_under_stoker_it_is_whether_epochs_count(profiler) -> None:
    api = profiler(STOKER_EPOCHS_DONE=2, EPOCHS_DONE=7, JOB_RESTARTED="FALSE")
    assert (api.RESTARTED, api.EPOCHS_DONE) == (True, 2)


def test_kub_35_unset_means_a_fresh_start(profiler) -> None:
    assert profiler().RESTARTED is False


def test_kub_37_the_epochs_done_are_a_number(profiler) -> None:
    assert profiler(EPOCHS_DONE=2).EPOCHS_DONE == 2


def test_kub_38_steps_are_reported_every_n_iterations(profiler, training_dir: TrainingDir) -> None:
    api = profiler(HEARTBEAT_FREQ=3)
    assert api.PROFILE_EACH == 3
    api.start_epoch()
    told = []
    for call in range(1, 8):
        api.measure()
        if (training_dir.reports / "steps").exists():
            told.append((call, training_dir.steps()["n"]))
    # The first call starts the clock, so the third and sixth iteration end at calls 4 and 7.
    assert told == [(4, 4), (5, 4), (6, 4), (7, 7)]


def test_kub_39_40_42_the_other_variables_are_attributes(profiler) -> None:
    api = profiler(
        NODELIST="a,b",
        NUM_GPUS=4,
        NUM_NODES=2,
        BATCH_SIZE=10,
        EPOCHS_TO_BE_DONE=3,
        TRAINING_SET_SIZE=100,
    )
    assert (api.NODE_LIST, api.NUM_GPUS, api.NUM_NODES) == ("a,b", 4, 2)
    assert (api.BATCH_SIZE, api.EPOCHS, api.TRAINING_SET_SIZE) == (10, 3, 100)


def test_kub_43_epochs_is_the_total_so_a_restart_at_two_of_three_runs_one_more(
    profiler, training_dir: TrainingDir
) -> None:
    api = profiler(EPOCHS_TO_BE_DONE=3, EPOCHS_DONE=2, JOB_RESTARTED="TRUE")
    for _ in range(api.EPOCHS - api.EPOCHS_DONE):
        api.start_epoch()
        api.end_epoch()
    assert training_dir.epochs("end") == [2]


def test_kub_50_the_hosts_of_the_older_services_are_accepted(profiler) -> None:
    profiler()
    KubeProfiler("JOB_MANAGER_HOST:80", "DB_HOST")
    KubeProfiler(job_manager_hostname="a", db_hostname="b")


def test_kub_51_without_a_scheduler_it_is_there_and_does_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    api = KubeProfiler()
    for _ in range(api.EPOCHS):
        api.start_epoch()
        for _ in range(3):
            api.measure()
        api.end_epoch()
    api.end()
    found = (api.RANK, api.JOBID, api.RESTARTED, api.EPOCHS_DONE, api.NUM_GPUS, api.NUM_NODES)
    assert found == (0, "", False, 0, 1, 1)
    assert (api.BATCH_SIZE, api.EPOCHS, api.TRAINING_SET_SIZE, api.NODE_LIST) == (1, 1, 1, "")
    assert api.has_to_stop is False
    assert list(tmp_path.iterdir()) == []
    assert Path(api.root_dir).is_dir()  # made when it is asked for
    assert capfd.readouterr() == ("", "")


def test_kub_52_the_derived_numbers(profiler) -> None:
    api = profiler(
        TRAINING_SET_SIZE=100, BATCH_SIZE=10, NUM_GPUS=2, NUM_NODES=1, EPOCHS_TO_BE_DONE=3
    )
    assert (api.iterationPerEpoch, api.maxIterations) == (5, 15)
    assert (api.epoch, api.iterations, api.mean_iteration_duration) == (0, 0, 0.0)
    api.start_epoch()
    for _ in range(4):
        api.measure()
    api.end_epoch()
    assert (api.epoch, api.iterations) == (1, 3)
    assert api.mean_iteration_duration > 0


def test_kub_52_no_gpus_are_no_division_by_zero(profiler) -> None:
    assert profiler(NUM_GPUS=0, TRAINING_SET_SIZE=7).iterationPerEpoch == 7


def test_kub_53_the_root_is_where_stoker_says_and_it_is_made(
    profiler, training_dir: TrainingDir
) -> None:
    api = profiler()
    assert api.root_dir == str(training_dir.checkpoints)
    assert training_dir.checkpoints.is_dir()


def test_kub_53_a_root_that_cannot_be_made_raises_nothing(profiler) -> None:
    assert profiler(STOKER_CHECKPOINT_DIR="/dev/null/a").root_dir == "/dev/null/a"


def write(path: Path, age: int) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    os.utime(path, (2000 - age, 2000 - age))
    return str(path)


def test_kub_54_the_path_is_that_of_the_highest_version_not_of_its_name(
    profiler, training_dir: TrainingDir
) -> None:
    logs = training_dir.checkpoints / "lightning_logs"
    write(logs / "version_9/checkpoints/a.ckpt", 1)
    write(logs / "version_10/checkpoints/old.ckpt", 9)
    newest = write(logs / "version_10/checkpoints/new.ckpt", 8)
    write(logs / "version_11/hparams.yaml", 0)
    (logs / "version_12/checkpoints").mkdir(parents=True)
    write(training_dir.checkpoints / "newer.pth", 0)
    assert profiler().ckpt_path == newest


def test_kub_54_else_the_newest_file(profiler, training_dir: TrainingDir) -> None:
    write(training_dir.checkpoints / "lightning_logs/version_0/hparams.yaml", 0)
    write(training_dir.checkpoints / "old.pth", 5)
    newest = write(training_dir.checkpoints / "deep/cifar_net.pth", 1)
    assert profiler().ckpt_path == newest


def test_kub_54_else_a_path_at_which_nothing_is(profiler, training_dir: TrainingDir) -> None:
    assert profiler().ckpt_path == str(training_dir.checkpoints / "tf_ckpts")
    assert list(training_dir.checkpoints.iterdir()) == []


def test_kub_55_a_restart_is_reported(
    profiler, training_dir: TrainingDir, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(training_dir.checkpoints / "lightning_logs/version_3/checkpoints/a.ckpt", 0)
    profiler(JOB_RESTARTED="TRUE", EPOCHS_DONE=1)
    assert capsys.readouterr().out.splitlines() == [
        "[KUBE_API_LIBRARY] last version found is  3",
        f"[KUBE_API_LIBRARY]: Job Restarted, ckpt_path:  {path}",
    ]


def test_kub_55_a_fresh_start_says_nothing(profiler, capfd: pytest.CaptureFixture[str]) -> None:
    profiler(JOB_RESTARTED="FALSE")
    assert capfd.readouterr() == ("", "")


def test_kub_56_n_calls_are_one_iteration_fewer(profiler, training_dir: TrainingDir) -> None:
    api = profiler()
    api.start_epoch()
    for _ in range(7):
        api.measure()
    api.end_epoch()
    assert api.iterations == 6
    assert training_dir.lines("end")[0]["n"] == 7


def test_kub_57_time_between_epochs_is_no_step(
    profiler, training_dir: TrainingDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 1))
    late = [0.0]
    for module in ("training_job", "runtime.step_timer"):
        monkeypatch.setattr(
            f"stoker.training.{module}.perf_counter", lambda: next(clock) / 1000 + late[0]
        )
    api = profiler()
    for _ in range(2):
        api.start_epoch()
        for _ in range(11):
            api.measure()
        api.end_epoch()
        late[0] += 60  # validation, saving
    assert [line["s"] for line in training_dir.lines("end")] == pytest.approx([0.001, 0.001])
    assert api.mean_iteration_duration == pytest.approx(0.001)


def test_kub_59_60_a_stop_acts_at_the_start_of_an_epoch_and_nowhere_else(
    profiler, training_dir: TrainingDir, capsys: pytest.CaptureFixture[str]
) -> None:
    api = profiler(EPOCHS_TO_BE_DONE=9, HEARTBEAT_FREQ=1)
    api.start_epoch()
    training_dir.ask_to_stop()
    for _ in range(3):
        api.measure()
    api.end_epoch()
    assert api.has_to_stop
    saved = time.time()
    with pytest.raises(SystemExit) as stopped:
        api.start_epoch()
    assert stopped.value.code == 75
    assert training_dir.lines("stopped")[0]["e"] == 1
    assert training_dir.lines("stopped")[0]["t"] >= saved - 0.01
    assert training_dir.epochs("start") == [0]
    said = "stoker: stopping before epoch 1 as requested; the job resumes later\n"
    assert capsys.readouterr().err == said


def test_kub_62_end_says_nothing(profiler, training_dir: TrainingDir) -> None:
    api = profiler()
    before = training_dir.lines()
    api.end()
    assert training_dir.lines() == before


def test_kub_64_65_without_a_daemon_it_continues(profiler) -> None:
    api = profiler(PATH="/nonexistent", STOKER_REPORTS="/dev/null/nowhere")
    api.start_epoch()
    api.measure()
    api.end_epoch()
    assert api.epoch == 1


def test_kub_66_an_epoch_counts_when_the_next_begins_not_when_it_ends(
    profiler, training_dir: TrainingDir
) -> None:
    api = profiler()
    api.start_epoch()
    api.end_epoch()
    assert training_dir.epochs("start") == [0]  # zero epochs count: its checkpoint is not there yet
    (training_dir.checkpoints / "cifar_net.pth").write_text("")
    api.start_epoch()
    assert training_dir.epochs("start") == [0, 1]


def test_models_that_hold_it_can_be_copied_and_saved(profiler) -> None:
    api = profiler(BATCH_SIZE=5)
    assert copy.deepcopy(api).BATCH_SIZE == 5
    assert pickle.loads(pickle.dumps(api)).BATCH_SIZE == 5


def test_two_of_them_speak_as_one(profiler, training_dir: TrainingDir) -> None:
    one = profiler()
    two = KubeProfiler()
    one.start_epoch()
    two.measure()
    two.measure()
    one.end_epoch()
    assert (one.iterations, two.epoch) == (1, 1)
    assert len(training_dir.lines("hello")) == 1
