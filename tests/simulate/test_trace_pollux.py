"""Workloads of the Pollux study: what was measured becomes speed by GPUs, machines and progress."""

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.formats import pollux
from stoker.simulate.traces.formats.pollux import TrainingSpeed

SAMPLE = Path(__file__).parent / "traces" / "pollux"
HEADER = "name,time,application,num_replicas,batch_size\n"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(SAMPLE, tmp_path / "pollux")
    return tmp_path / "pollux" / "workloads" / "sample.csv"


def made(tmp_path: Path) -> TrainingSpeed:
    """One application with round numbers: one GPU and two, two batch sizes, two epochs."""
    folder = tmp_path / "profiles" / "net"
    folder.mkdir(parents=True)
    lines = "placement,local_bsz,step_time,sync_time\n"
    lines += (
        "1,10,1.0,0.0\n1,20,2.0,0.0\n2,10,1.0,0.0\n2,20,2.0,0.0\n11,10,1.5,0.5\n11,20,2.5,0.5\n"
    )
    (folder / "placements.csv").write_text(lines)
    (folder / "scalability.csv").write_text(
        "num_nodes,num_replicas,local_bsz,step_time,sync_time\n4,4,10,3.5,2.5\n4,4,20,4.5,2.5\n"
    )
    epochs = "progress,iteration,metric,grad_sqr,grad_var\n100,0,0,1.0,0.0\n200,0,0,0.0,1.0\n"
    for batch in (10, 20):
        (folder / f"validation-{batch}.csv").write_text(epochs)
    workload = tmp_path / "jobs.csv"
    workload.write_text(HEADER + "net-0,5,net,2,20\n")
    speed = pollux.read(workload).jobs[0].speed
    assert isinstance(speed, TrainingSpeed)
    return speed


def refusal(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        pollux.read(path)
    return str(caught.value).replace(str(path.parent.parent), "HERE")


def test_jobs_are_elastic_unless_their_owner_saw_no_use_in_it() -> None:
    found = pollux.read(SAMPLE / "workloads" / "sample.csv")
    assert [(job.name, job.submit_time, job.gpus, job.max_gpus) for job in found.jobs] == [
        ("cifar10", 0.0, 1, 64),
        ("ncf", 28.0, 1, None),
    ]
    assert len(found.nodes) == 16
    assert all(len(node.types["gpu"]) == 4 for node in found.nodes)


def test_profiles_may_lie_beside_the_workload_itself() -> None:
    assert {job.name for job in pollux.read(SAMPLE / "workload.csv").jobs} == {"ncf"}


def test_one_gpu_does_all_its_work_in_the_seconds_of_the_job() -> None:
    for job in pollux.read(SAMPLE / "workloads" / "sample.csv").jobs:
        speed = job.speed
        assert isinstance(speed, TrainingSpeed)
        epochs = speed.epochs
        each = [1 / speed.rate(epoch / epochs, 1, 1, "") for epoch in range(epochs)]
        assert sum(each) / epochs * job.duration == pytest.approx(job.duration)


def test_without_noise_a_second_gpu_does_nothing(tmp_path: Path) -> None:
    # A step is worth as much whatever its batch: the smallest batch, 5 on each, is none that was
    # measured; 10 on each take as long as 10 on the only one.
    speed = made(tmp_path)
    assert speed.rate(0.0, 2, 1, "") == pytest.approx(speed.rate(0.0, 1, 1, ""))


def test_with_nothing_but_noise_two_gpus_are_twice_as_fast(tmp_path: Path) -> None:
    speed = made(tmp_path)
    assert speed.rate(0.5, 2, 1, "") == pytest.approx(2 * speed.rate(0.5, 1, 1, ""))


def test_two_machines_pay_for_the_exchange_between_them(tmp_path: Path) -> None:
    # A step of 1.5 s in place of 1.0 s.
    speed = made(tmp_path)
    assert speed.rate(0.5, 2, 2, "") == pytest.approx(2 / 1.5 * speed.rate(0.5, 1, 1, ""))


def test_between_numbers_of_machines_steps_take_what_lies_between(tmp_path: Path) -> None:
    # Three machines: half of the way from 1.5 s on two to 3.5 s on four, for a batch of 30, of
    # which 20 is the largest allowed: 6 on each, which take what 10 do.
    speed = made(tmp_path)
    assert speed.rate(0.0, 3, 3, "") == pytest.approx(1 / 2.5)


def test_the_rate_changes_only_between_epochs() -> None:
    job = pollux.read(SAMPLE / "workloads" / "sample.csv").jobs[0]
    speed = job.speed
    assert isinstance(speed, TrainingSpeed)
    for epoch in range(speed.epochs):
        inside = {speed.rate((epoch + part) / speed.epochs, 4, 1, "") for part in (0.0, 0.5, 0.99)}
        assert len(inside) == 1
    assert speed.rate(1.0, 4, 1, "") == speed.rate(0.999, 4, 1, "")


def test_more_gpus_help_more_as_the_training_goes_on() -> None:
    speed = pollux.read(SAMPLE / "workloads" / "sample.csv").jobs[0].speed
    assert isinstance(speed, TrainingSpeed)
    gains = [speed.rate(done, 4, 1, "") / speed.rate(done, 1, 1, "") for done in (0.0, 0.4, 0.9)]
    assert all(early < late for early, late in pairwise(gains))


def test_no_gpu_is_shared() -> None:
    speed = pollux.read(SAMPLE / "workloads" / "sample.csv").jobs[0].speed
    assert speed is not None
    assert speed.interference(speed, "") == 0.0


def test_every_placement_up_to_the_whole_cluster_has_a_speed() -> None:
    speed = pollux.read(SAMPLE / "workloads" / "sample.csv").jobs[0].speed
    assert speed is not None
    for gpus in range(1, 65):
        for machines in range(-(-gpus // 4), min(gpus, 16) + 1):
            assert speed.rate(0.5, gpus, machines, "") > 0.0


# -- what is wrong ------------------------------------------------------------------------


def test_without_profiles_it_says_which_folder_is_missing(copy: Path) -> None:
    shutil.rmtree(copy.parent.parent / "profiles")
    assert "profiles" in refusal(copy)


def test_an_unknown_application_is_named(copy: Path) -> None:
    copy.write_text(HEADER + "a,1,unheard-of,2,20\n")
    assert "HERE/profiles/unheard-of" in refusal(copy)


@pytest.mark.parametrize("time", ["soon", "nan", "-1", "", "inf"])
def test_a_bad_number_is_shown_with_its_line(copy: Path, time: str) -> None:
    copy.write_text(HEADER + f"a,1,ncf,1,32768\nb,{time},ncf,1,32768\n")
    assert refusal(copy).startswith(f"HERE/workloads/sample.csv, line 3: time {time!r}")


def test_a_line_that_is_cut_off_is_refused(copy: Path) -> None:
    copy.write_text(HEADER + "a,1,ncf\n")
    assert "line 2: num_replicas ''" in refusal(copy)


def test_a_missing_column_of_a_profile_is_named(copy: Path) -> None:
    path = copy.parent.parent / "profiles" / "ncf" / "placements.csv"
    path.write_text(path.read_text().replace("sync_time", "something"))
    message = refusal(copy)
    assert message.startswith("HERE/profiles/ncf/placements.csv, line 1: ")
    assert "add sync_time" in message


def test_an_application_must_have_been_measured_on_one_gpu(copy: Path) -> None:
    path = copy.parent.parent / "profiles" / "ncf" / "placements.csv"
    path.write_text(path.read_text().splitlines(keepends=True)[0] + "2,32,0.1,0.0\n")
    assert "placements.csv has no placement 1" in refusal(copy)


def test_a_step_takes_time(copy: Path) -> None:
    path = copy.parent.parent / "profiles" / "ncf" / "placements.csv"
    path.write_text(path.read_text() + "2,32,0.0,0.0\n")
    assert "steps that take no time" in refusal(copy)


def test_an_empty_workload_is_refused(copy: Path) -> None:
    copy.write_text(HEADER)
    assert refusal(copy).startswith("HERE/workloads/sample.csv has no job")
