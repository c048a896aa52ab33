"""Allocations that end: training jobs stop at a checkpoint before, and resume in the next pilot."""

from typing import Any

from e2e.daemon_fixture import DaemonFixture, until
from slurm.actions import add_cluster, nodes, pilots, submit
from slurm.slurm_cluster import SlurmCluster
from ssh.test_training import SCRIPT, counted


def train(box: DaemonFixture, *allowed: int) -> int:
    """Submit a training job of three epochs; return its id when the allowed ones have ended."""
    box.script("train.py", SCRIPT)
    options = ("--gpus", "1", "--exclusive-gpu", "--epochs", "3")
    job = int(box.submit(*options, "/usr/bin/python3", "train.py"))
    allow(box, *allowed)
    until(lambda: training(box, job).get("epochs_done") == len(allowed))
    return job


def allow(box: DaemonFixture, *epochs: int) -> None:
    for epoch in epochs:
        (box.user / f"go{epoch}").touch()


def training(box: DaemonFixture, job: int) -> dict[str, Any]:
    view: dict[str, Any] = box.job(job)["training"] or {}
    return view


def wait_for_stop(box: DaemonFixture, job: int) -> None:
    """Wait until the first attempt was asked to stop."""
    files = f"*/{job}.0.reports/stop"
    until(lambda: list((box.user / ".stoker/run").glob(files)))
    assert "lab-1 ends soon" in str(training(box, job))


def assert_resumed_once(box: DaemonFixture, job: int, at_epoch: int) -> None:
    """Assert that the second attempt did the rest, and that no epoch ran twice."""
    view = box.end_of(job)
    assert view["result"] == 0
    assert [attempt["cause"] for attempt in view["attempts"]] == [
        "stopped: lab-1 ends soon",
        "done",
    ]
    begins = [line.split()[2] for line in box.output(job).splitlines() if "begins" in line]
    assert begins == [str(at_epoch)]
    assert "trained 111" in box.output(job)
    assert counted(box) == sorted(set(counted(box)))


def test_a_training_job_stops_before_the_time_limit_and_resumes_in_the_next_pilot(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    add_cluster(idle)
    job = train(idle, 0)
    first = slurm.only_job()
    slurm.run("scontrol", "update", f"JobId={first}", "TimeLimit=2")
    slurm.run("scancel", "--batch", "--signal=TERM", first)
    wait_for_stop(idle, job)
    # The pilot has ended its relay, so that the daemon asks at once and not with the next poll.
    assert "lab-1 is unreachable: the connection was lost" in idle.log
    allow(idle, 1, 2)
    assert_resumed_once(idle, job, at_epoch=2)
    until(lambda: first not in [id for id, _ in slurm.jobs()])


def test_a_training_job_stops_within_the_grace_time_of_a_preemption(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    add_cluster(idle, "--", "-p", "grace")
    job = train(idle, 0)
    preemptor = slurm.submit_to_all("-p", "high")
    wait_for_stop(idle, job)
    allow(idle, 1)
    idle.becomes(job, "PENDING")
    slurm.run("scancel", preemptor)
    allow(idle, 2)
    assert_resumed_once(idle, job, at_epoch=2)


def test_a_training_job_in_a_pilot_is_preempted_at_a_checkpoint_and_resumes_there(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    add_cluster(idle, pilot="gpus=1 cores=2 mem=1G time=30m max=1 idle=60s")
    job = train(idle, 0)
    urgent = submit(idle, "exit 5", "--priority", "10")
    until(lambda: list((idle.user / ".stoker/run").glob(f"*/{job}.0.reports/stop")))
    allow(idle, 1)
    assert idle.end_of(urgent)["result"] == 5
    allow(idle, 2)
    view = idle.end_of(job)
    assert (view["result"], view["node"], len(view["attempts"])) == (0, "lab-1", 2)
    assert "trained 111" in idle.output(job)
    assert counted(idle) == sorted(set(counted(idle)))


def test_a_job_that_no_pilot_is_long_enough_for_says_so(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    add_cluster(idle)
    job = submit(idle, "true", "--time", "1h")
    short = submit(idle, "true", "--time", "20m")
    text = "allocations of lab are for jobs of at most 27 min, the job's limit is 60 min"
    assert text in idle.stoker("why", job).stdout
    assert idle.end_of(short)["result"] == 0
    assert text in idle.stoker("why", job).stdout
    assert len(pilots(idle)) == 1
    assert "lab-1 is unreachable" not in idle.log
    assert nodes(idle)["lab-1"]["state"] == "up"
