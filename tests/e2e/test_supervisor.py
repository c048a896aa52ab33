"""Supervisor, daemon or host end: the exits of jobs stay known."""

import json
import os
import shutil
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, alive, kill, until

WAITS = "echo ready; while [ ! -e {flag} ]; do sleep 0.05; done; exit {code}"


def waiting(box: DaemonFixture, code: int, *options: object) -> tuple[str, Path]:
    """Submit a job that ends with a code when a file appears."""
    flag = box.user / f"go-{code}-{time.monotonic_ns()}"
    job = box.submit(*options, WAITS.format(flag=flag, code=code))
    box.says(job, "ready")
    return job, flag


def test_a_killed_supervisor_ends_no_job_and_loses_no_exit_code(box: DaemonFixture) -> None:
    job, flag = waiting(box, 7, "--gpus", "1")
    old = box.supervisors
    for pid in old:
        kill(pid)
    until(lambda: len(set(box.supervisors) - set(old)) == len(old))
    assert alive(box.pid_of(job))
    assert box.result("exit 5")["result"] == 5  # new jobs start
    flag.touch()
    ended = box.end_of(job)
    assert (ended["state"], ended["result"], ended["attempt"]) == ("FAILED", 7, 0)


def test_jobs_that_end_when_the_supervisor_is_killed_have_an_end(box: DaemonFixture) -> None:
    label = box.submit("--each-line", "-", input="sleep 0.1; exit 4\n" * 24)
    for _ in range(4):
        time.sleep(0.07)
        for pid in box.supervisors:
            kill(pid)
    assert box.client.wait([label], timeout=40)["finished"]
    assert {(job["state"], job["result"]) for job in box.jobs(label)} == {("FAILED", 4)}


def test_jobs_that_end_while_daemon_and_supervisor_are_dead_are_lost(box: DaemonFixture) -> None:
    job, flag = waiting(box, 0)
    again, flag_again = waiting(box, 0, "--retries", "1", "--retry-on", "lost")
    going, flag_going = waiting(box, 0)
    old_supervisors = box.supervisors
    pids = [box.pid_of(label) for label in (job, again)]
    box.crash()
    for pid in old_supervisors:
        kill(pid)
    flag.touch()
    flag_again.touch()
    until(lambda: not any(map(alive, pids)))
    ended = box.up().end_of(job)
    assert (ended["state"], ended["cause"]) == (
        "NODE_FAIL",
        "lost: the process ended without an exit record",
    )
    second = box.end_of(again)
    assert (second["state"], second["attempt"]) == ("COMPLETED", 1)
    assert box.job(going)["state"] == "RUNNING"
    flag_going.touch()
    assert box.end_of(going)["state"] == "NODE_FAIL"  # its parent had ended


def recorded(box: DaemonFixture, job: str) -> bool:
    """Return whether a supervisor has recorded the exit of a job."""
    line = f"{job}.0 exit ".encode()
    return any(line in path.read_bytes() for path in (box.state / "exits").iterdir())


def reboot(box: DaemonFixture, jobs: list[str]) -> None:
    """Create the state after a restart of the host."""
    pids = [box.pid_of(job) for job in jobs]
    old_supervisors = box.supervisors
    box.crash()
    for pid in [*old_supervisors, *pids]:
        kill(pid)
    shutil.rmtree(box.run_dir)
    another_boot(box)


def another_boot(box: DaemonFixture) -> None:
    """Give the journal another boot id."""
    with sqlite3.connect(box.state / "journal.db") as db:
        (value,) = db.execute("SELECT value FROM meta WHERE key = 'rest'").fetchone()
        changed = json.loads(value)
        assert changed["boot"]
        changed["boot"] = "another boot"
        db.execute("UPDATE meta SET value = ? WHERE key = 'rest'", (json.dumps(changed).encode(),))
    db.close()


def test_after_a_reboot_running_jobs_are_lost_and_their_retry_rule_applies(
    box: DaemonFixture,
) -> None:
    job, _ = waiting(box, 0)
    requeued, flag = waiting(box, 0, "--requeue", "--gpus", "2")
    queued = box.submit("--hold", "true")
    reboot(box, [job, requeued])
    flag.touch()
    ended = box.up().end_of(job)
    assert (ended["state"], ended["cause"]) == ("NODE_FAIL", "lost: the node restarted")
    assert box.stoker("wait", job).returncode == 1
    again = box.end_of(requeued)
    assert (again["state"], again["attempt"]) == ("COMPLETED", 1)
    assert box.job(queued)["state"] == "PENDING"


def test_an_exit_recorded_before_the_reboot_counts(box: DaemonFixture) -> None:
    job, flag = waiting(box, 6)
    other, _ = waiting(box, 0)
    daemon = box.pid
    os.kill(daemon, signal.SIGSTOP)  # the daemon does not get the exit, the supervisor does
    flag.touch()
    until(lambda: recorded(box, job))
    kill(daemon)
    box.up()  # so that pids can be queried; the exit is known now
    assert box.end_of(job)["result"] == 6
    third, flag = waiting(box, 9)
    pids = [box.pid_of(label) for label in (other, third)]
    daemon = box.pid
    os.kill(daemon, signal.SIGSTOP)
    flag.touch()
    until(lambda: recorded(box, third))
    kill(daemon)
    for pid in (*box.supervisors, *pids):
        kill(pid)
    shutil.rmtree(box.run_dir)
    another_boot(box)
    box.up()
    assert box.end_of(third)["result"] == 9
    assert box.end_of(other)["cause"] == "lost: the node restarted"


def test_without_a_run_directory_jobs_are_found_by_their_token_and_not_run_twice(
    box: DaemonFixture,
) -> None:
    count = box.user / "count"
    flag = box.user / "go"
    job = box.submit(
        "--gpus",
        "1",
        f"echo x >> {count}; echo ready; until [ -e {flag} ]; do sleep 0.05; done; exit 3",
    )
    box.says(job, "ready")
    box.crash()
    shutil.rmtree(box.run_dir)
    box.up()
    assert box.job(job)["state"] == "RUNNING"
    assert box.gpus()["0"]["state"] == "busy"
    flag.touch()
    ended = box.end_of(job)
    assert (ended["state"], ended["result"], ended["attempt"]) == ("FAILED", 3, 0)
    assert count.read_text() == "x\n"


def test_without_a_run_directory_an_exit_is_read_from_the_exit_log(box: DaemonFixture) -> None:
    job, flag = waiting(box, 8)
    pid = box.pid_of(job)
    box.crash()
    shutil.rmtree(box.run_dir)
    flag.touch()
    until(lambda: not alive(pid))
    until(lambda: recorded(box, job))
    ended = box.up().end_of(job)
    assert (ended["state"], ended["result"]) == ("FAILED", 8)


def test_without_run_directory_and_supervisor_a_started_job_is_not_started_again(
    box: DaemonFixture,
) -> None:
    count = box.user / "count"
    job = box.submit(f"echo x >> {count}; echo ready; exec sleep 60")
    box.says(job, "ready")
    pid, old_supervisors = box.pid_of(job), box.supervisors
    box.crash()
    for process in (*old_supervisors, pid):
        kill(process)
    shutil.rmtree(box.run_dir)
    assert box.up().end_of(job)["state"] == "NODE_FAIL"
    assert count.read_text() == "x\n"


def test_a_supervisor_ignores_an_outdated_instruction(box: DaemonFixture) -> None:
    box.result("true")
    old_supervisors = box.supervisors
    count = box.user / "count"
    for pid in old_supervisors:
        os.kill(pid, signal.SIGSTOP)
    try:
        job = box.submit(f"echo $STOKER_ATTEMPT >> {count}")
        until(lambda: box.job(job)["state"] == "CONFIGURING")
        box.crash()
        ended = box.up().end_of(job)
        assert (ended["state"], ended["attempt"]) == ("COMPLETED", 1)
        box.result("true")
        time.sleep(0.3)  # the new daemon has cleaned up
    finally:
        for pid in old_supervisors:
            os.kill(pid, signal.SIGCONT)
    until(lambda: not any(map(alive, old_supervisors)))  # they have read their last messages
    assert count.read_text() == "1\n"


def test_a_recovered_job_that_runs_out_of_cuda_memory_is_reported_as_such(
    box: DaemonFixture,
) -> None:
    flag = box.user / "go"
    job = box.submit(
        f"echo ready; until [ -e {flag} ]; do sleep 0.05; done; echo 'CUDA out of memory'; exit 1"
    )
    box.says(job, "ready")
    box.crash()
    box.up()
    flag.touch()
    ended = box.end_of(job)
    assert (ended["state"], ended["cause"]) == ("OUT_OF_MEMORY", "CUDA out of memory")


@pytest.mark.timeout(120)
def test_thousands_of_concurrent_starts_do_not_deadlock_daemon_and_supervisor(
    idle: DaemonFixture,
) -> None:
    box = idle.start("{cpu:6000}")
    label = box.submit("--each-line", "-", input="true\n" * 6000)
    assert box.client.wait([label], timeout=100)["finished"]
    assert box.client.jobs()["counts"].get("FAILED", 0) == 0
