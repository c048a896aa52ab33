"""Failures of Slurm, of pilots and of the daemon: every job ends once, with its own exit."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, alive, kill, until
from executors.contract import FIRST
from slurm.actions import (
    HOLD,
    ONCE,
    add_cluster,
    nodes,
    pilots,
    ran,
    relays,
    release_jobs,
    submit,
    wait_for_pilot,
)
from slurm.pilot_bench import PilotBench, new_name
from slurm.slurm_cluster import SlurmCluster
from ssh.test_training import SCRIPT
from stoker.executors.slurm.commands import SlurmCommands


def wrap(box: DaemonFixture, command: str, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program in front of one of Slurm's commands, which is $REAL in the script."""
    real = subprocess.run(["which", command], capture_output=True, text=True, check=True)
    directory = box.home.parent / "bin"
    directory.mkdir(exist_ok=True)
    program = directory / command
    program.write_text(f"#!/bin/sh\nREAL={real.stdout.strip()}\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return program


def test_a_killed_relay_loses_nothing(slurm: SlurmCluster, idle: DaemonFixture) -> None:
    add_cluster(idle)
    job = submit(idle, f"{ONCE}; echo one; {HOLD}; echo two; exit 5")
    idle.says(job, "one")
    found = relays(idle)
    assert found
    for pid in found:
        kill(pid)
    release_jobs(idle)
    assert idle.end_of(job)["result"] == 5
    assert idle.output(job) == "one\ntwo\n"
    assert ran(idle) == [job]


def test_a_killed_daemon_finds_its_pilot_and_the_job_in_it(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    add_cluster(idle)
    job = submit(idle, f"{ONCE}; echo one; {HOLD}; exit 5")
    idle.says(job, "one")
    before = slurm.only_job()
    idle.crash()
    idle.up()
    wait_for_pilot(idle)
    assert idle.job(job)["state"] == "RUNNING"
    release_jobs(idle)
    assert idle.end_of(job)["result"] == 5
    assert ran(idle) == [job]
    assert slurm.only_job() == before


def test_a_killed_daemon_finds_a_pilot_that_is_queued(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    blocker = slurm.occupy()
    add_cluster(idle)
    job = submit(idle, f"{ONCE}; exit 5")
    queued = slurm.only_job("PENDING")
    idle.crash()
    idle.up()
    view = wait_for_pilot(idle, "queued")
    assert f"job {queued}" in view["why"]
    slurm.run("scancel", blocker)
    assert idle.end_of(job)["result"] == 5
    assert ran(idle) == [job]
    assert slurm.only_job() == queued


def test_a_daemon_that_is_killed_again_and_again_requests_one_pilot(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    add_cluster(idle)
    job = submit(idle, f"{ONCE}; {HOLD}; exit 5")
    for seconds in (0.0, 0.1, 0.3, 0.6):
        time.sleep(seconds)
        idle.crash()
        idle.up()
    until(lambda: ran(idle))
    release_jobs(idle)
    assert idle.end_of(job)["result"] == 5
    assert ran(idle) == [job]
    assert len(pilots(idle)) == 1
    slurm.only_job()


def test_another_pilot_is_requested_if_the_controller_forgets_one(
    slurm: SlurmCluster, idle: DaemonFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that is killed after the acknowledgement of sbatch may lose the job."""
    flag = idle.user / "first"
    flag.touch()
    # The job is removed as if it had never been: Slurm 22.05 saves accepted jobs at its own time.
    wrap(
        idle, "sbatch",
        f'[ -e {flag} ] || exec $REAL "$@"; rm {flag}; cat >/dev/null; echo 4711', monkeypatch,
    )  # fmt: skip
    add_cluster(idle)
    job = submit(idle, f"{ONCE}; exit 5")
    assert idle.end_of(job)["result"] == 5
    assert ran(idle) == [job]
    assert "Slurm does not know its job any more" in idle.log
    assert len(slurm.jobs()) == 1


def test_a_killed_controller_doubles_and_loses_nothing(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    add_cluster(idle)
    job = submit(idle, f"{ONCE}; exit 5")
    until(slurm.jobs)
    slurm.kill_controller()
    slurm.start_controller()
    assert idle.end_of(job, 50)["result"] == 5
    assert ran(idle) == [job]
    # If the controller has forgotten the allocation, there is another; if it learned of it from the
    # node, it has ended it. It may also have forgotten that jobs of earlier tests have ended.
    prefix = f"stoker-{(idle.state / 'install').read_text()[:8]}"

    def own_jobs() -> int:
        return sum(name.startswith(prefix) for (name,) in slurm.jobs(format="%j"))

    until(lambda: own_jobs() == len(pilots(idle)) <= 1)


def test_a_submission_that_times_out_leaves_one_allocation(
    slurm: SlurmCluster, idle: DaemonFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrap(idle, "sbatch", f'echo >>{tmp_path}/calls; $REAL "$@"; sleep 5', monkeypatch)
    bench = PilotBench(tmp_path, idle.user, new_name(), SlurmCommands(timeout=2))
    try:
        bench.executor.start(bench.launch(FIRST, seconds=1.0, code=3))
        assert bench.exit(FIRST).code == 3
        downs = len(bench.sink.downs)
        bench.wait(300)  # until sbatch was given up
        assert len(bench.sink.downs) == downs
        assert bench.sink.gone == []
        assert (tmp_path / "calls").read_text() == "\n"
        assert len(slurm.jobs()) == 1
    finally:
        bench.stop()


def test_of_two_jobs_with_one_name_one_is_cancelled(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    add_cluster(idle)
    job = submit(idle, f"{ONCE}; {HOLD}; exit 5")
    idle.becomes(job, "RUNNING")
    first = slurm.only_job()
    name = slurm.jobs(format="%j")[0][0]
    slurm.run("sbatch", "--job-name", name, "--wrap", "sleep 1000")
    assert len(slurm.jobs()) == 2
    idle.client.refresh_nodes(["lab"])
    assert slurm.only_job() == first
    release_jobs(idle)
    assert idle.end_of(job)["result"] == 5


def test_an_attempt_in_a_cancelled_pilot_is_lost_at_once_and_runs_again(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    add_cluster(idle)
    again = submit(idle, f"{ONCE}; {HOLD}; exit 5", "--requeue")
    fails = submit(idle, f"{ONCE}; {HOLD}; exit 5", "--no-requeue")
    for job in (again, fails):
        idle.becomes(job, "RUNNING")
    until(lambda: len(ran(idle)) == 2)
    slurm.run("scancel", slurm.only_job())
    assert idle.end_of(fails)["state"] == "NODE_FAIL"
    assert "CANCELLED" in str(idle.job(fails))
    until(lambda: len(ran(idle)) == 3)
    release_jobs(idle)
    assert idle.end_of(again)["result"] == 5
    assert sorted(ran(idle)) == [again, again, fails]


def test_a_job_runs_again_when_slurm_gives_its_node_up_although_the_script_lives_on(
    slurm: SlurmCluster, idle: DaemonFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host of Slurm's commands does not see the processes of the nodes."""
    wrap(idle, "env", 'exec unshare --pid --fork --mount-proc "$REAL" "$@"', monkeypatch)
    add_cluster(idle)
    job = submit(idle, f"{ONCE}; {HOLD}; exit 5", "--requeue")
    until(lambda: ran(idle) == [job])
    pid, [[node]] = idle.becomes(job, "RUNNING")["pid"], slurm.jobs(format="%N")
    slurm.end_daemon(node, signal.SIGKILL)
    try:
        slurm.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        until(lambda: ran(idle) == [job, job])
        assert alive(pid)
        assert "NODE_FAIL" in idle.log
        release_jobs(idle)
        assert idle.end_of(job)["result"] == 5
    finally:
        slurm.start_node(node)
    assert ran(idle) == [job, job]


def test_a_job_that_slurm_signals_before_its_agent_is_lost_with_the_allocation(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    """Slurm signals one process after the other."""
    add_cluster(idle)
    lost = submit(idle, f"{ONCE}; {HOLD}", "--no-requeue")
    until(lambda: ran(idle) == [lost])
    pid, allocation = idle.becomes(lost, "RUNNING")["pid"], slurm.only_job()
    kill(pid)
    slurm.run("scancel", allocation)
    assert idle.end_of(lost)["state"] == "NODE_FAIL"


def test_a_job_that_is_killed_in_a_pilot_has_failed(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    add_cluster(idle)
    killed = submit(idle, f"{ONCE}; {HOLD}")
    until(lambda: ran(idle) == [killed])
    kill(idle.becomes(killed, "RUNNING")["pid"])
    assert idle.end_of(killed)["signal"] == signal.SIGKILL


def test_an_exit_that_was_recorded_before_the_end_of_the_pilot_counts(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    add_cluster(idle)
    job = submit(idle, f"{ONCE}; echo one; {HOLD}; echo two; exit 0", "--requeue")
    idle.says(job, "one")
    idle.crash()
    for pid in relays(idle):
        kill(pid)
    release_jobs(idle)
    records = idle.user / ".stoker/run"
    until(lambda: [path for path in records.glob("*/*.exit") if "exited" in path.read_text()])
    slurm.run("scancel", slurm.only_job())
    until(lambda: not slurm.jobs())
    idle.up()
    assert idle.end_of(job)["state"] == "COMPLETED"
    assert idle.output(job) == "one\ntwo\n"
    assert ran(idle) == [job]
    until(lambda: not pilots(idle))
    until(lambda: not list(records.iterdir()))


def test_a_wrong_partition_is_reported_and_not_requested_endlessly(
    slurm: SlurmCluster, idle: DaemonFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = idle.user / "calls"
    wrap(idle, "sbatch", f'echo >>{calls}; exec $REAL "$@"', monkeypatch)
    add_cluster(idle, "--", "-p", "wrong")
    job = submit(idle, "true")
    until(lambda: "invalid partition specified: wrong" in str(nodes(idle)["lab"]["notes"]))
    time.sleep(1)
    assert calls.read_text().count("\n") <= 2
    assert pilots(idle) == []
    assert "invalid partition specified: wrong" in idle.stoker("why", job).stdout
    assert "invalid partition specified: wrong" in idle.stoker("nodes").stdout
    assert "invalid partition specified: wrong" in str(idle.client.daemon()["warnings"])


def test_a_controller_that_does_not_answer_loses_nothing(
    slurm: SlurmCluster, idle: DaemonFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = idle.user / "fails"
    wrap(
        idle, "squeue",
        f'[ ! -e {flag} ] || {{ echo "Socket timed out on send/recv operation" >&2; exit 1; }}\n'
        'exec $REAL "$@"', monkeypatch,
    )  # fmt: skip
    add_cluster(idle)
    job = submit(idle, f"{ONCE}; {HOLD}; exit 5")
    idle.becomes(job, "RUNNING")
    flag.touch()
    idle.client.refresh_nodes(["lab"])
    until(lambda: nodes(idle)["lab"]["state"] == "unreachable")
    for pid in relays(idle):
        kill(pid)
    release_jobs(idle)
    assert idle.end_of(job)["result"] == 5
    flag.unlink()
    idle.client.refresh_nodes(["lab"])
    until(lambda: nodes(idle)["lab"]["state"] == "up")
    assert ran(idle) == [job]
    assert len(slurm.jobs()) == 1


def test_a_training_job_resumes_after_slurm_preempted_its_pilot(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    add_cluster(idle, "--", "-p", "low")
    idle.script("train.py", SCRIPT)
    options = ("--gpus", "1", "--exclusive-gpu", "--epochs", "3")
    job = int(idle.submit(*options, "/usr/bin/python3", "train.py"))
    (idle.user / "go0").touch()
    until(lambda: (idle.job(job)["training"] or {}).get("epochs_done") == 1)
    preemptor = slurm.occupy("-p", "high")
    idle.becomes(job, "PENDING")
    assert "PREEMPTED" in idle.log
    slurm.run("scancel", preemptor)
    for epoch in (1, 2):
        (idle.user / f"go{epoch}").touch()
    assert idle.end_of(job)["result"] == 0
    begins = [line.split()[2:4] for line in idle.output(job).splitlines() if "begins" in line]
    assert begins[-1] == ["1", "1"]
    assert "trained 111" in idle.output(job)


def test_a_stopped_daemon_leaves_its_pilots(slurm: SlurmCluster, idle: DaemonFixture) -> None:
    add_cluster(idle)
    job = submit(idle, f"{ONCE}; {HOLD}; exit 5")
    idle.becomes(job, "RUNNING")
    kill(idle.pid, signal.SIGTERM)
    until(lambda: not idle.answers())
    before = slurm.only_job()
    release_jobs(idle)
    idle.up()
    assert idle.end_of(job)["result"] == 5
    assert slurm.only_job() == before
