"""Requests and changes of jobs over the command line, with real processes and restarts.

Which devices a submission gets, and in which order: tests/daemon/submission/test_placement.py.
"""

from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, until

HOLDS = "echo ready; exec sleep 300"


def busy(box: DaemonFixture, *options: object) -> str:
    """Start a job that keeps its resources."""
    job = box.submit(*options, HOLDS)
    box.says(job, "ready")
    return job


def waits(box: DaemonFixture, *options: object) -> str:
    """Submit a job that cannot start now."""
    job = box.submit(*options, HOLDS)
    assert box.job(job)["state"] == "PENDING", box.job(job)
    return job


def devices(box: DaemonFixture, label: object) -> list[str]:
    """Return the GPUs of a job."""
    gpus: list[str] = box.job(label)["devices"]["gpu"]
    return gpus


@pytest.fixture
def one(idle: DaemonFixture) -> DaemonFixture:
    """A daemon with a single GPU."""
    return idle.start("{gpu:1,cpu:8}")


def test_named_resources_are_counted(idle: DaemonFixture) -> None:
    idle.start("{gpu:4,cpu:8,licence:[2]}")
    for _ in range(2):
        busy(idle, "--resource", "licence=1")
    third = waits(idle, "-r", "{licence:1}")
    why = idle.client.why(third)
    assert "licence" in str(why)


def test_drained_gpus_get_no_new_jobs_and_running_jobs_continue(box: DaemonFixture) -> None:
    job = busy(box, "--gpus", "1", "--use-gpus", "1")
    done = box.stoker("drain", "0,1")
    assert done.returncode == 0
    assert box.gpus()["0"]["state"] == "drained"
    assert devices(box, busy(box, "--gpus", "2")) == ["2", "3"]
    blocked = waits(box, "--gpus", "1")
    assert "drained" in str(box.client.why(blocked))
    assert box.job(job)["state"] == "RUNNING"
    box.stoker("daemon", "restart", check=True)  # the drain persists
    assert box.job(blocked)["state"] == "PENDING"
    box.stoker("undrain", "0,1", check=True)
    assert box.becomes(blocked, "RUNNING")["devices"]["gpu"] == ["0"]


def test_queues_of_the_config_have_their_limits(idle: DaemonFixture) -> None:
    (idle.home / "config.toml").write_text(
        "[queues.small]\nmax_running = 1\n[queues.narrow]\nmax_gpus = 2\ndevices = ['2', '3']\n"
    )
    box = idle.start()
    first = busy(box, "-p", "small")
    second = waits(box, "-p", "small")
    assert "small" in str(box.client.why(second))
    assert devices(box, busy(box, "-p", "narrow", "--gpus", "2")) == ["2", "3"]
    waits(box, "-p", "narrow", "--gpus", "1")
    busy(box, "--gpus", "2")
    box.client.kill([first])
    box.becomes(second, "RUNNING")


def test_dependencies_depend_on_how_the_other_job_ended(box: DaemonFixture) -> None:
    bad = box.submit("--hold", "exit 1")
    after = {
        kind: box.submit("-d", f"{kind}:{bad}", "true")
        for kind in ("afterok", "afterany", "afternotok")
    }
    assert {box.job(job)["reason"] for job in after.values()} == {"Dependency"}
    box.client.release([bad])
    assert box.end_of(after["afterany"])["state"] == "COMPLETED"
    assert box.end_of(after["afternotok"])["state"] == "COMPLETED"
    assert box.job(after["afterok"])["reason"] == "DependencyNeverSatisfied"
    done = box.stoker("wait", after["afterok"])
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


def test_a_paused_job_is_stopped_and_keeps_its_gpu(one: DaemonFixture) -> None:
    job = one.submit("--gpus", "1", "while :; do echo x >> ticks; sleep 0.05; done")
    ticks = one.user / "ticks"
    until(ticks.exists)
    assert one.stoker("pause", job).returncode == 0
    assert one.job(job)["state"] == "SUSPENDED"
    pid = one.pid_of(job)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    size = ticks.stat().st_size
    waits(one, "--gpus", "1")
    assert ticks.stat().st_size == size
    assert one.stoker("resume", job).returncode == 0
    until(lambda: ticks.stat().st_size > size)
    assert one.job(job)["state"] == "RUNNING"


def test_a_pending_job_can_be_changed(one: DaemonFixture) -> None:
    blocker = busy(one, "--gpus", "1")
    job = waits(one, "--gpus", "1")
    done = one.stoker("edit", job, "--gpus", "0", "--cpus", "2", "-J", "changed")
    assert done.returncode == 0, done.stderr
    now = one.becomes(job, "RUNNING")
    assert (now["name"], now["request"]["cpus"]) == ("changed", "2")
    assert one.stoker("edit", blocker, "--gpus", "0").returncode == 1
    late = waits(one, "--gpus", "1")
    assert one.stoker("edit", late, "--gpus", "2").returncode == 6


def test_time_limit_and_priority_of_a_running_job_can_be_changed(one: DaemonFixture) -> None:
    job = busy(one, "--gpus", "1", "--time", "1h")
    refused = one.stoker("edit", job, "--priority", "4", "--gpus", "0")
    assert refused.returncode == 1
    assert "it is running and --gpus counts only when a job starts" in refused.stderr
    assert one.job(job)["priority"] == 0
    assert one.stoker("edit", job, "--priority", "4", "--time", "2h").returncode == 0
    one.crash()
    one.up()
    now = one.job(job)
    assert (now["state"], now["priority"], now["time_limit"]) == ("RUNNING", 4, 7200)
    until(lambda: one.client.edit([job], {"time": "1s"}, dry_run=True) == {"overdue": [job]})
    assert one.stoker("edit", job, "--time", "1s").returncode == 0
    assert one.end_of(job)["state"] == "TIMEOUT"


def test_a_request_that_no_node_can_satisfy_exits_with_6(box: DaemonFixture) -> None:
    code, text = box.refused("--gpus", "5", "true")
    assert (code, "GPU" in text) == (6, True)
    assert box.client.jobs()["jobs"] == []
